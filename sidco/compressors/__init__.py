"""One file per scheme. They never import each other and are in no registry: a yaml file names its class."""
