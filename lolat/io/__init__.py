"""Files: documents (JSON), tables (CSV), where models and other data of a user live."""
