"""Laws: seconds and bytes of ops, collectives and reshards on a machine."""
