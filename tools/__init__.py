"""Tools for developers of the project. Not part of the installed product."""
