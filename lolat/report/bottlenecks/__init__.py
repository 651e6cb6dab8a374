"""The page of a report: `page` writes it, beside its template, style and script."""
