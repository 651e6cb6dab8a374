"""A whole space scored into Parquet files, in this process or on a Ray cluster; see docs/scale.md."""
