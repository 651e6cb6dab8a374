"""The page of `lolat report --html`: its data (data.py) and its template (page.html, page.css, page.js)."""
