"""Plots of an evaluation: which curves they show, and that they are whole SVG files."""

from xml.etree import ElementTree

from debate_train.commands.evaluation_results import plots

SVG = "{http://www.w3.org/2000/svg}"


def points(*means: float, tokens: float | None = 10.0) -> list[dict[str, float | None]]:
    return [
        {"x": x, "tokens": None if tokens is None else tokens * (x + 1), "mean": mean}
        for x, mean in enumerate(means)
    ]


def drawn(curves: dict[str, list[dict[str, float | None]]]) -> dict[str, ElementTree.Element]:
    return {name: ElementTree.fromstring(text) for name, text in plots({"one": curves})}


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def test_plots_show_debates_by_round_and_all_by_tokens() -> None:
    found = drawn(
        {
            "eval/direct/maj@k": points(0.5, 0.5, 0.6, 0.65),
            "eval/direct/pass@k": points(0.5, 0.7, 0.8, 0.9),
            "eval/debate/majority": points(0.6, 0.7),
            "eval/debate/agent": points(0.5, 0.55),
            "eval/a<b/debate/majority": points(0.6, 0.4, 0.3),
        }
    )
    assert set(found) == {"one-accuracy_by_round", "one-accuracy_by_tokens"}
    by_round, by_tokens = (
        texts(found["one-accuracy_by_round"]),
        texts(found["one-accuracy_by_tokens"]),
    )
    assert [text for text in by_round if ": " in text] == [
        *("majority: 70.0 %", "one agent: 55.0 %", "a<b: majority: 30.0 %")
    ]
    # Rounds count from 1 where people read them.
    assert {"1", "2", "3", "round"} <= set(by_round)
    assert [text for text in by_tokens if ": " in text] == [
        *("majority of replies: 65.0 %", "debate: 70.0 %", "a<b: debate: 30.0 %")
    ]
    assert "tokens" in by_tokens
    for svg, dots in ((found["one-accuracy_by_round"], 7), (found["one-accuracy_by_tokens"], 9)):
        circles = list(svg.iter(f"{SVG}circle"))
        assert len(circles) == dots
        width, height = map(float, svg.attrib["viewBox"].split()[2:])
        assert all(0 < float(dot.attrib["cx"]) < width for dot in circles)
        assert all(0 < float(dot.attrib["cy"]) < height for dot in circles)


def test_plots_leave_out_what_is_not_known() -> None:
    found = drawn(
        {"eval/debate/majority": points(0.6, 0.7, tokens=None), "eval/x/debate/agent": []}
    )
    assert set(found) == {"one-accuracy_by_round"}
    assert drawn({}) == {}


def test_plots_have_colours_that_every_program_knows() -> None:
    for _, text in plots({"one": {"eval/direct/maj@k": points(0.5, 0.6)}}):
        assert "var(" not in text
        # Ink and the first line in the light scheme.
        assert "fill: #1d1d1b" in text
        assert ".line.s1 { stroke: #1f5fa8; }" in text


def test_plots_keep_every_series_and_the_answers_of_the_center() -> None:
    curves = {
        f"eval/{mode}debate/{curve}": points(0.5, 0.6)
        for mode in ("", "sparse/", "n3/", "n7/", "central/")
        for curve in ("majority", "agent", *(("central",) if mode == "central/" else ()))
    }
    found = drawn(curves)
    assert set(found) == {
        *("one-accuracy_by_round", "one-accuracy_by_round_2", "one-accuracy_by_tokens")
    }
    labels = [
        text.split(": ")[:-1]
        for name in ("one-accuracy_by_round", "one-accuracy_by_round_2")
        for text in texts(found[name])
        if text.endswith("60.0 %")
    ]
    assert len(labels) == len(curves) == 11
    assert ["central", "the center"] in labels
    assert "Accuracy by round (2 of 2)" in texts(found["one-accuracy_by_round_2"])


def test_policies_stand_in_one_plot_of_each_mode() -> None:
    def curves(last: float) -> dict[str, list[dict[str, float | None]]]:
        return {f"eval/{mode}debate/majority": points(0.5, last) for mode in ("", "sparse/")}

    found = dict(plots({"dapo": curves(0.6), "sdrl": curves(0.7)}))
    assert {name for name in found if "policies" in name} == {
        *("policies-majority", "policies-sparse_majority")
    }
    svg = ElementTree.fromstring(found["policies-sparse_majority"])
    assert texts(svg)[-2:] == ["dapo: 60.0 %", "sdrl: 70.0 %"]
