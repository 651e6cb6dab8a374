"""Files: documents (JSON), tables (CSV), and where models and other data of a user live."""
