"""A mistake on the command line is one or two lines on stderr and status 2; nothing is run and nothing written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import made
import pytest
from conftest import Posbench

from posbench import records
from posbench.search_path import choices

ENCODINGS = f"encoding: {', '.join(choices('encoding'))}"

CASES = [
    # What Hydra alone says in 5 to 9 lines (misspelt words: CLI-2).
    ("train encoding=ropee", f"There is no encoding 'ropee'. Did you mean 'rope'?\n{ENCODINGS}"),
    ("train encodng=rope", "There is no setting 'encodng'. Did you mean 'encoding'?"),
    ("train train.lenght=512", "There is no setting 'train.lenght'. Did you mean 'train.length'?"),
    ("train model.n_haeds=4", "There is no setting 'model.n_haeds'. Did you mean 'model.heads'?"),
    ("train +model.n_haeds=4", "There is no setting 'model.n_haeds'. Did you mean 'model.heads'?"),
    ("train ++model.n_haeds=4", "There is no setting 'model.n_haeds'. Did you mean 'model.heads'?"),
    ("train encoding.bsae=5", "There is no setting 'encoding.bsae'. Did you mean 'encoding.base'?"),
    ("train +encoding.bsae=5", "There is no setting 'encoding.bsae'. Did you mean 'encoding.base'?"),
    ("train length=128", "There is no setting 'length'. Did you mean 'train.length'?"),
    ("train model.heads=7", "model.heads=7 does not divide model.width=128."),
    ("train optim.lr=fast", "optim.lr: 'fast' is no number."),
    # A group takes a name: no null, number, list or path, and it cannot be left out.
    ("train encoding=null", f"There is no encoding 'null'.\n{ENCODINGS}"),
    ("train seed=2 model=1.5", "There is no model '1.5'."),
    ("train -m model=nano,2", "In the job model=2: There is no model '2'."),
    ("train encoding=[rope]", f"The group encoding needs one choice.\n{ENCODINGS}"),
    ("train model=./nano", "There is no model './nano'. Did you mean 'nano'?"),
    ("train model=../train/default", "There is no model '../train/default'."),
    ("train '~model'", "The group model needs one choice.\nmodel: base, micro"),
    ("train encoding@extra=rope", "There is no setting 'encoding@extra'. Did you mean 'encoding'?"),
    ("train =rope", "There is no setting ''.\nsettings: data, device, encoding"),
    ("train +encoding=alibi", "encoding is there already.\nLeave out the '+' to change it."),
    ("train data=/data/set", "There is no data/data 'set'."),
    ("train 'seed=${oc.env:PATH}'", "seed: While dereferencing interpolation '${oc.env:PATH}': Value"),
    ("train hydra/launcher=jobli", "There is no hydra/launcher 'jobli'."),
    ("train '~train.length'", "train.length cannot be taken away."),
    # In a sweep: the job is named, before any is started.
    ("train -m encoding=rope,alibii", "In the job encoding=alibii: There is no encoding 'alibii'. Did you mean"),
    ("train -m encoding=rope,alibi encoding.base=5", "In the job encoding=alibi: There is no setting 'encoding.base'."),
    ("train -m encoding=rope,alibi model.heads=7", "In the job encoding=rope: model.heads=7 does not divide"),
    ("train -m encoding=t5,shaw encoding.clip=3", "In the job encoding=t5: There is no setting 'encoding.clip'."),
    ("sweep encoding=rope,alibi worker=2", "There is no setting 'worker'. Did you mean 'workers'?"),
    ("sweep 'seed=choice(1,2),3'", "A choice(...) or range(...) stands within a list of values."),
    ("sweep 'hydra.sweeper.params={seed: \"1,2\"}'", "has no effect.\nWrite the lists themselves, as in seed=1,2."),
    # Commas, brackets, quotes (CLI-1).
    ("train encoding=rope,alibi", "rope,alibi gives several values.\nposbench train -m runs one job for each."),
    ("train eval.lengths=512,1024", "write 'eval.lengths=[512,1024]'."),
    ("train eval.lengths=512", "eval.lengths: this is no list.\nWrite it in brackets, as in eval.lengths=[128,256]."),
    ("train eval.lengths=[512, 1024]", "The list in eval.lengths=[512, is cut short or not readable."),
    ("train data=files data.path=été.txt", "Quote it twice: 'data.path=\"été.txt\"'."),
    ("train train.tokens=2026-01-02", "train.tokens: '2026-01-02' is no whole number."),
    ("train 'train.tokens=5|6'", "train.tokens: '5|6' is no whole number."),
    ("eval --lengths 512,abc", "'--lengths': 'abc' is not a positive whole number; write for example 512,1024,4096"),
    ("eval --lengths 512,-1", "'-1' is not a positive whole number"),
    # A dot for a slash (CLI-3): never a dead key beside a plain rope run.
    ("train encoding.extension=yarn", "There is no setting 'encoding.extension'."),
    ("train +encoding.extension=yarn", "There is no setting 'encoding.extension'."),
    # Words that nothing takes (CLI-5).
    ("train alibi", "'alibi' is no setting. Did you mean 'encoding=alibi'?"),
    ("train nonsense", "'nonsense' is no setting."),
    ("train --nonsense", "No such option: --nonsense"),
    ("train --encoding rope", "A setting has no dashes: encoding=..."),
    ("sweep --seed=1,2", "A setting has no dashes: seed=..."),
    ("table --format xlsx", "'--format' / '-f': 'xlsx' is not one of"),
    ("train --multrun", "No such option: --multrun (Possible options: --multirun)"),
    ("train encoding=ssmax encoding.inner.base=3", "encoding.inner='{name: ENCODING, base: VALUE}'"),
    ("train encoding=my_idea", f"There is no encoding 'my_idea'.\n{ENCODINGS}"),
    ("train encoding=my_idea", "; those of your own: --config-dir DIR"),
    ("eval --nonsense", "No such option: --nonsense"),
    ("eval --extension pi --extension yarn", "--extension is given twice."),
    ("eval rope --lengths=512 --lengths=1024", "--lengths is given twice."),
    ("check rope encoding.base=1,2", "encoding.base=1,2 gives several values."),
    ("eval nonsense", "There is no run 'nonsense'"),
    ("eval encoding=alibi", "a run is evaluated as it was trained; only eval.* and extension.* can be set."),
    ("eval evaluate.block=3", "only eval.* and extension.* can be set."),
    ("eval eval.blok=3", "There is no setting 'eval.blok'. Did you mean 'eval.block'?"),
    ("eval --protocol slidin", "There is no eval.protocol 'slidin'. Did you mean 'sliding'?"),
    ("eval --split tset", "There is no eval.split 'tset'. Did you mean 'test'?"),
    ("eval --on sout", "There is no corpus 'sout'. Did you mean 'sotu'?"),
    ("eval --on ''", "There is no corpus ''."),
    ("eval --stride 5", "--stride has no effect here.\nIt belongs to --protocol sliding."),
    ("eval --protocol sliding --min-context 5", "--min-context has no effect here.\nIt belongs to --protocol same"),
    ("eval --lengths 99999999999999999999", "eval.lengths: 99999999999999999999 must be 1,099,511,627,776 or less."),
    ("encodings --length 99999999999", "does not fit in memory at a training length of"),
    ("generate rope Hello --seed 99999999999999999999", "Invalid value for '--seed'"),
    ("data prepare sotu data=books", "data=books and sotu exclude each other."),
    ("eval --protocol sliding --stride 0", "eval.stride=0 must be 1 or more."),
    ("eval", "There is no finished run in"),
    ("table", "There are no rows in"),
    ("table nonsense", "There is no run 'nonsense'"),
    ("table nowhere.yaml", "There is no run 'nowhere.yaml'"),
    ("table train_short_test_long", "The tables of a study: posbench report train_short_test_long; or"),
    ("plot train_short_test_long", "The tables of a study: posbench report train_short_test_long"),
    ("table extra --format exel", "Invalid value for '--format'"),
    ("show nonsense", "There is no run 'nonsense'"),
    ("show", "Missing argument 'RUN'"),
    ("runs", "There is no run in"),
    ("runs extra", "Got unexpected extra argument(s) (extra)"),
    ("encodings rop", f"There is no encoding 'rop'. Did you mean 'rope'?\n{ENCODINGS}"),
    ("encodings --model nao", "There is no model 'nao'. Did you mean 'nano'?"),
    ("generate nonsense Hello", "There is no run 'nonsense'"),
    ("data prepare sout", "There is no data 'sout'. Did you mean 'sotu'?"),
    ("data prepared", "No such command 'prepared'"),
    ("reproduce --full --smoke", "Only one of --full and --smoke can be given."),
    ("trian", "No such command 'trian'"),
    # What says how another flag prints.
    ("train --resolve", "--package and --resolve say how --cfg prints."),
    ("train --cfg job -m", "Only one of --cfg, --info and -m can be given."),
    ("train --info foo", "Invalid value for '--info'"),
    ("train encoding=rope -- --dry-run", "'--dry-run' is no setting."),
    # An option behind "--" is none to the parser: without a word it would be the default run, trained for an hour.
    ("train -- -m", "'-m' is no setting.\nWrite options without '--' before them."),
    ("train -m -- seed=1,2 --dry-run", "'--dry-run' is no setting."),
    ("train --", "Nothing follows '--'."),
    ("train -", "'-' is no setting."),
    ("eval -- --force", "'--force' is no setting."),
    ("data prepare sotu -- --out", "'--out' is no setting."),
    ("reproduce -- --smoke", "'--smoke' is no setting."),
    ("report --bench=", "--bench is empty."),
    ("reproduce workers=0", "workers=0 is no number of jobs from 1 to 1024."),
    ("reproduce train.lenght=5", "There is no setting 'train.lenght'. Did you mean 'train.length'?"),
    ("study run train_short", "There is no study 'train_short'. Did you mean 'train_short_test_long'?"),
    ("study run nowhere.yaml", "The study nowhere.yaml cannot be read.\nNo such file or directory."),
    ("study run train_short_test_long --budget ful", "There is no budget 'ful'. Did you mean 'full'?"),
    ("study run", "Missing argument 'NAME|FILE.yaml'"),
    ("status", "There is no run in"),
    ("status nonsense", "There is no study 'nonsense'."),
    ("status --watch", "--watch is for a terminal, and for people."),
    ("rm nonsense", "There is no run 'nonsense'"),
    ("rm", "Missing argument 'RUN'"),
    ("reproduce --", "Nothing follows '--'."),
    ("train hydra.mode=MULTIRUN seed=1,2", "hydra.mode=MULTIRUN has no effect.\nWrite -m to run one job for each"),
    ("train on_error=stop", "on_error=stop has no effect here.\nIt belongs to several jobs: add -m."),
    ("train seed=2 workers=2", "workers=2 has no effect here."),
    ("train -m seed=1,2 on_error=stpo", "Did you mean 'stop'?\non_error: continue, retry=N, stop"),
    ("train -m seed=1,2 workers=two", "workers=two is no number of jobs from 1 to 1024."),
    ("sweep seed=1,2 workers=2 --dry-run", "workers= and on_error= have no effect on --dry-run."),
    ("sweep encoding=rope,alibii", "In the job encoding=alibii: There is no encoding 'alibii'. Did you mean 'alibi'?"),
    ("eval workers=2", "workers=2: a run is evaluated as it was trained"),
    ("train -m 'encoding=glob(zz*)'", "makes no job."),
    ("train -m 'optim.lr=interval(0,1)'", "optim.lr=interval(0,1) gives no list of values."),
    ("train --cfg jobs", "Invalid value for '--cfg'"),
    ("train --config-dir nowhere", "There is no config folder"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "said"), CASES, ids=[line for line, _ in CASES])
def test_a_mistake_is_named_with_the_nearest_valid_choice(posbench: Posbench, tmp_path: Path, line: str, said: str):
    done = posbench(line) if "[512, " not in line else posbench("train", "eval.lengths=[512,", "1024]")
    assert done.status == 2
    assert said in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) <= 2
    assert done.out == ""
    assert not list((tmp_path / "here").iterdir())
    assert not (tmp_path / "runs").exists()


def test_the_file_of_a_study_has_no_rows_but_a_command_that_shows_them(posbench: Posbench, tmp_path: Path):
    file = tmp_path / "my study.yaml"
    file.write_text("title: T\n")
    assert posbench("table", str(file)).err == (
        f"error: {file} is no run and no row.\n"
        f"The tables of a study: posbench report '{file}'; or posbench study run '{file}', which first measures "
        "what is missing\n"
    )


@pytest.mark.parametrize(
    "line", ["train encoding=rope", "eval", "table", "plot", "report", "runs", "status", "rm rope"]
)
def test_a_file_in_the_place_of_the_folder_of_runs_is_named(posbench: Posbench, tmp_path: Path, line: str):
    (tmp_path / "runs").write_text("mine")
    done = posbench(line)
    assert (done.status, len(done.err.splitlines())) == (2, 2)
    assert done.err.startswith(f"error: {tmp_path / 'runs'}, where the runs are to be, is a file.")
    assert (tmp_path / "runs").read_text() == "mine"


def test_rows_without_a_model_are_not_measured_anew(posbench: Posbench, tmp_path: Path):
    behind = made.arrays([480.0])
    records.write(tmp_path / "runs" / "rope-L128-nano-s1-12345678" / "rows", made.row(behind), behind)
    done = posbench("eval")
    assert done.status == 2
    assert "Rows without a model are not measured anew; posbench table shows them." in done.err


def test_a_traceback_is_there_for_whoever_asks(posbench: Posbench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_DEBUG", "1")
    done = posbench("train encoding=ropee")
    assert done.status == 2
    assert "Traceback" in done.err


def test_a_fault_of_ours_keeps_its_traceback(posbench: Posbench, monkeypatch: pytest.MonkeyPatch):
    from posbench import train

    def broken(*words: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(train, "train", broken)
    with pytest.raises(RuntimeError, match="ours"):
        posbench("train encoding=rope")


def test_what_the_operating_system_refuses_is_one_line(posbench: Posbench, monkeypatch: pytest.MonkeyPatch):
    from posbench import train

    def full(*words: object) -> None:
        raise OSError(28, "No space left on device", "/runs/rope/checkpoint.safetensors")

    monkeypatch.setattr(train, "train", full)
    done = posbench("train encoding=rope")
    assert done.status == 2
    assert done.err == "error: No space left on device: /runs/rope/checkpoint.safetensors\n"


def test_ctrl_c_is_status_130_and_no_traceback(posbench: Posbench, monkeypatch: pytest.MonkeyPatch):
    from posbench import job, train

    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupted)
    monkeypatch.setattr(job, "train", interrupted)
    done = posbench("train encoding=rope")
    assert done.status == 130
    assert done.err == "Interrupted. The same command goes on from what is finished.\n"
    assert posbench("train -m encoding=rope,alibi").status == 130


def test_ctrl_c_during_the_first_import_is_no_traceback():
    """The finder stands for a signal that comes while posbench.cli is read."""
    code = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "posbench.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from posbench.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
