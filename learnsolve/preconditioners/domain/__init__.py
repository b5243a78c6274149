"""Domain decomposition: Schwarz methods and the interfaces of subdomains."""
