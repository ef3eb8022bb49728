from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_report.browsing import Pick, pick, show


def reply(answer, comparison="N/A"):
    solution = f"<solution>{answer}</solution><evaluation>N/A</evaluation>"
    return f"{solution}<comparison>{comparison}</comparison>"


def debate(name, question_id, first, *later, agents=3, contract="three_section"):
    question = Question(question_id, f"Question {question_id}", "1", {"kind": "number"})
    turns = [Turn(agent, 0, text) for agent, text in enumerate(first)]
    return Transcript(name, question, Protocol(agents, 2, contract=contract), (*turns, *later))


def files(tmp_path, **contents):
    for name, debates in contents.items():
        write_transcripts(tmp_path / f"{name}.jsonl", debates)
    return [tmp_path / f"{name}.jsonl" for name in contents]


def chosen(transcript):
    return Pick("First steps", "file", transcript)


AGREED, SPLIT = [reply(1)] * 3, [reply(1), reply(2), reply(1)]


def test_pick_shows_the_same_question_first_and_last_when_there_is_one(tmp_path):
    paths = files(
        tmp_path,
        start=[debate("a", "q3", AGREED), debate("b", "q2", AGREED), debate("c", "q1", AGREED)],
        middle=[debate("d", "q9", SPLIT)],
        end=[debate("e", "q7", AGREED), debate("f", "q1", AGREED), debate("g", "q2", AGREED)],
    )
    picks = pick(paths)
    assert [(one.why, one.source, one.transcript.id) for one in picks] == [
        ("First steps", "start", "c"),
        ("Last steps", "end", "f"),
        ("A disagreement", "middle", "d"),
    ]
    assert pick(paths) == picks


def test_pick_takes_two_debates_when_there_is_one_file(tmp_path):
    paths = files(tmp_path, only=[debate("a", "q1", SPLIT), debate("b", "q2", AGREED)])
    assert [one.transcript.id for one in pick(paths)] == ["a", "b"]
    assert pick([]) == [] and pick(files(tmp_path, empty=[])) == []


def test_pick_leaves_out_debates_under_an_unknown_contract(tmp_path):
    own = debate("a", "q1", SPLIT, contract="of_a_user")
    paths = files(tmp_path, only=[own, debate("b", "q2", AGREED)])
    assert [one.transcript.id for one in pick(paths)] == ["b"]


def test_show_marks_votes_for_right_and_wrong_answers():
    def judge(agent, comparison):
        shown = tuple(TurnKey(other, 0) for other in range(4) if other != agent)
        return Turn(agent, 1, reply(1, comparison), shown)

    # In round 0 agents 0 and 2 are right, 1 and 3 are wrong.
    first = [reply(1), reply(2), reply(1), reply(2)]
    later = (
        judge(0, "Agent 2 > Agent 1"),  # right
        judge(1, "Agent 3 > Agent 2"),  # wrong
        judge(2, "Agent 1 > Agent 3"),  # both wrong: no mark
        judge(3, "Agent 0 = Agent 1"),  # no side taken: no mark
    )
    page = show(chosen(debate("a", "q", first, *later, agents=4)))
    votes = [part.split("</ul>")[0] for part in page.split("<ul")[1:]]
    assert ['class="right"' in vote for vote in votes] == [True, False, False, False]
    assert ['class="wrong"' in vote for vote in votes] == [False, True, False, False]
    assert "Agent 3 &gt; Agent 2" in page


def test_show_names_a_failed_turn_and_keeps_its_text():
    failed = Turn(1, 0, "no tags, only <b>words</b>", failure="no_solution<i>")
    page = show(chosen(debate("a", "q", [reply(1)], failed)))
    assert "failed: no_solution&lt;i&gt;" in page
    assert "no tags, only &lt;b&gt;words&lt;/b&gt;" in page
    assert page.count('class="turn failed"') == 1


def test_show_gives_the_whole_text_when_the_contract_has_no_sections():
    text = "Let me think. The answer is \\boxed{1}"
    page = show(chosen(debate("a", "q", [text], agents=1, contract="boxed")))
    assert text in page and "✓ right" in page
