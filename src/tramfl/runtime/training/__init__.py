"""The process that trains and tests at a site, and the site's end of it."""
