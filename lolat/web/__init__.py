"""The calculator page: a form in the browser, answered by a server that listens on this machine alone."""
