"""A job file with every field explained."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from stretto_wire import JobSpec
from stretto_wire.jobspec.commented import commented
from stretto_wire.jobspec.jobfile import read_job

STATED = {
    "name": "shop-clicks",
    "model": {"entry": "my_model:Clicks", "path": "/code", "arguments": {"data": "s3://shop/a b", "n": "12"}},
    "dataset": {"samples": 5000, "batch_size": 256},
    "evaluate": 1000,
}


def test_it_is_the_job_that_was_stated() -> None:
    assert read_job(commented(STATED)) == JobSpec.parse(STATED)


def test_what_is_stated_comes_first_and_everything_else_with_its_default() -> None:
    lines = commented(STATED).splitlines()
    options = [line for line in lines if not line.lstrip(" ").startswith("# ")]
    assert options[:3] == ["name: shop-clicks", "model:", '  entry: "my_model:Clicks"']
    assert "  #optimizer: adagrad" in options
    assert "  #keep: 2" in options
    assert "#priority: 1.0" in options
    names = {line.strip().lstrip("#").partition(":")[0] for line in options}
    assert JobSpec.model_fields.keys() - {"api"} <= names


def test_a_field_of_several_forms_is_written_in_the_one_that_is_stated() -> None:
    model = {"entry": "m:M", "optimizer": {"rows": "sgd", "dense": {"name": "adam", "learning_rate": 0.5}}}
    assert read_job(commented(STATED | {"model": model})) == JobSpec.parse(STATED | {"model": model})


def test_a_default_may_be_stated_by_deleting_the_mark() -> None:
    text = commented(STATED)
    for option in ("#priority: 1.0", "#image: null", "#environment: {}", "#evaluate_every_samples: null"):
        assert f"\n{option}\n" in text
        assert read_job(text.replace(f"\n{option}\n", f"\n{option[1:]}\n")) == JobSpec.parse(STATED)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,9}", fullmatch=True),
        st.text(max_size=30) | st.from_regex(r"[-+.0-9eE_:xonys]{1,10}", fullmatch=True),
        max_size=3,
    )
)
@example({"a": "1e-05", "b": "12e03", "c": "2001-13-45"})
@example({"a": "yes", "b": "NaN", "c": "0x1F"})
def test_arguments_of_any_text_are_kept(arguments: dict[str, str]) -> None:
    stated = STATED | {"model": {"entry": "m:M", "arguments": arguments}}
    assert read_job(commented(stated)).model.arguments == arguments
