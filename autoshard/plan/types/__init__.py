"""The types of sharded values: what they are, what leads from one to another, and who checks.

`axis_type` says what a value is over a mesh axis, `transitions` is the table of all ways from one
type to another, `specification` what each of them computes, `plan_check` types a plan, and `body`
the body of a `shard_map`.
"""
