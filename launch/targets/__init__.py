"""The targets of `podzero launch` on Google Cloud: one module each, with the files and commands of a launch."""
