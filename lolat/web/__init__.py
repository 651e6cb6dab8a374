"""The calculator page: a form in the browser, answered by a server that only listens on this machine."""
