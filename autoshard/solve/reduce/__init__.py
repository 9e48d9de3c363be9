"""A problem made smaller without changing its best cost, and the way back."""
