"""Files (JSON, CSV), folders of device profiles and caches, child processes."""
