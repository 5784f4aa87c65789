"""From the arguments of ``learn`` to a result, or to a plan of one."""
