"""The records refuse what contradicts itself, and say where; the evaluator prices by definition."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.solve import Edge, Node, Problem, ProblemError, Usage, evaluate


def test_node_names_the_infinite_choice():
    with pytest.raises(ProblemError, match=r"node 'a': choices \[1\] cost \[inf\]"):
        Node("a", np.array([0.0, np.inf]))


def test_edge_lists_all_offences():
    with pytest.raises(ProblemError) as caught:
        Edge(2, 2, np.zeros((2, 2)), np.array([0, 5]), np.array([0]), weight=0.0)
    assert str(caught.value) == (
        "edge 2-2: joins a node to itself; add its diagonal to the costs of the node; left spans "
        "0 to 5 but the table has 2; project into 0 to 1; weight is 0.0; give a positive finite "
        "number"
    )


def test_problem_lists_all_offenders():
    edge = Edge.dense(0, 1, np.zeros((2, 3)))
    with pytest.raises(ProblemError) as caught:
        Problem(
            (Node("a", np.zeros(2)), Node("b", np.zeros(2))),
            (edge,),
            (Usage(7, np.zeros(2), 0, 1),),
        )
    assert "edge 0 (a - b) projects 2 x 3 choices; the nodes have 2 x 2" in str(caught.value)
    assert "usage 0 is of node 7: no such node" in str(caught.value)


def test_tables_stay_shared_and_become_read_only():
    table = np.zeros((2, 2))
    edges = [Edge.dense(0, 1, table), Edge.dense(1, 2, table)]
    assert edges[0].table is edges[1].table
    with pytest.raises(ValueError, match="read-only"):
        edges[0].table[0, 0] = 1.0


def test_evaluate_prices_and_finds_every_violation():
    table = np.array([[1.0, np.inf], [2.0, 3.0]])
    problem = Problem(
        (Node("a", np.array([1.0, 2.0])), Node("b", np.array([10.0, 20.0]))),
        (Edge.dense(0, 1, table, weight=2.0),),
        (Usage(0, np.array([4.0, 6.0]), 0, 3), Usage(1, np.array([5.0, 1.0]), 2, 4)),
        limit=9.0,
        offset=0.5,
    )
    fine = evaluate(problem, (0, 0))
    assert fine.objective == 0.5 + 1.0 + 10.0 + 2.0
    assert (fine.peak, fine.peak_time) == (9.0, 2)
    assert fine.feasible
    heavy = evaluate(problem, (1, 0))
    assert heavy.violations == ("memory: 11 bytes at time 2, limit 9 (1 times over)",)
    forbidden = evaluate(problem, (0, 1))
    assert forbidden.violations == ("a choice 0 and b choice 1 exclude each other",)
    with pytest.raises(ProblemError, match="b: choice 2 of 2"):
        evaluate(problem, (0, 2))


def test_a_time_when_nothing_is_live_counts_nothing():
    problem = Problem((Node("a", np.zeros(1)),), (), (Usage(0, np.ones(1), 5, 5),), 0.0)
    assert evaluate(problem, (0,)).feasible
