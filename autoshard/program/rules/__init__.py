"""How each operation may be cut: asked from Shardy, and joined per equation."""

from autoshard.program.rules.ask_shardy import NoRuleError, rules_for
from autoshard.program.rules.record import Factor, FactorKind, Rule
from autoshard.program.rules.user import UserRule

__all__ = ["Factor", "FactorKind", "NoRuleError", "Rule", "UserRule", "rules_for"]
