"""Files: documents (JSON), tables (CSV), folders of models and caches, child processes."""
