"""Encodings trained by several recipes, side by side."""

from __future__ import annotations

from posbench.report.parts import parts
from posbench.report.recipes import recipe_table
from posbench.report.tables import render

HALF = "optim.lr=0.01 optim.matrix_lr=0.015"


def rows(make, **perplexity: dict[str, float]):
    return [
        make(encoding, 128, value, recipe=f"{encoding}{settings}", settings=settings)
        for encoding, found in perplexity.items()
        for settings, value in found.items()
    ]


def test_recipes_stand_below_each_other_with_the_best_of_each_encoding_bold(make):
    """The shipped one first, whatever came out; ln 40 = 3.689. Each is of one seed, whose error is that of the text."""
    found = rows(make, rope={HALF: 42.0, "": 40.0}, alibi={"": 39.0, HALF: 38.0})
    lines = render(recipe_table(parts(found)[0]), "md").splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:] == [
        "as shipped",
        "lr=0.01 matrix_lr=0.015",
    ]
    assert "| as shipped | 3.664 ±0.010 | **3.689 ±0.010** |" in lines
    assert "| lr=0.01 matrix_lr=0.015 | **3.638 ±0.010** | 3.738 ±0.010 |" in lines


def test_a_setting_of_the_encoding_is_another_column_and_no_recipe(make):
    found = rows(make, rope={"": 40.0, "encoding.embed_scale=true": 41.0, HALF: 42.0})
    (first, *_) = recipe_table(parts(found)[0]).sections[0].rows
    assert [cell.text for cell in first] == ["as shipped", "3.689 ±0.010", "3.714 ±0.010"]


def test_what_was_trained_by_one_recipe_each_needs_no_table(make):
    assert recipe_table(parts(rows(make, rope={"": 40.0}, alibi={HALF: 39.0}))[0]) is None


def test_budgets_of_tokens_are_told_apart(make):
    found = rows(make, rope={"": 40.0}) + [make("rope", 128, 30.0, recipe="more", settings="", train_tokens=9)]
    recipes = [record["recipe"] for record in recipe_table(parts(found)[0]).records]
    assert recipes == ["as shipped, 9 tokens", "as shipped, 1,000,000 tokens"]
