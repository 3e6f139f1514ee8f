//! The program from outside: exit codes, one clear error for each kind of bad input, stable JSON, nothing lost.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod refusals;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program in `folder`; `words` are separated by blanks.
fn specquant(folder: &Path, words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_specquant")).args(words.split(' ')).current_dir(folder).output().unwrap()
}

/// Runs the program and expects exit code 2, nothing on stdout, and on stderr, after lines that say what was being done, one
/// error with all of `parts`.
fn refuses(folder: &Path, words: &str, parts: &[&str]) {
    let output = specquant(folder, words);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}: {error}");
    assert_eq!(output.stdout, b"", "{words}");
    let lines: Vec<&str> = error.trim_end().lines().collect();
    let (error, stages) = lines.split_last().unwrap();
    let doing = ["loading", "measuring", "warming"];
    assert!(stages.iter().all(|line| doing.iter().any(|verb| line.starts_with(verb))), "{words}: {lines:?}");
    assert!(error.starts_with("error: ") && !error.contains(": :"), "{words}: {error}");
    for part in parts {
        assert!(error.contains(part), "{words}: {error}");
    }
}

/// A copy of the bundled draft that a case may damage.
fn model(folder: &Path, name: &str) -> std::path::PathBuf {
    let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/draft"), folder.join(name));
    fs::create_dir(&to).unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    to
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// A short run as JSON.
fn short_run(folder: &Path, flags: &str) -> Value {
    let output = specquant(folder, &format!("run --json --num-prompts 2 --max-new-tokens 16 {flags}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{flags}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn two_runs_with_one_seed_accept_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for flags in ["--seed 3", "--seed 3 --temperature 0.8"] {
        // How many rounds and threads there are does not decide what comes out.
        let [a, b] = ["--rounds 2 --threads 2", "--rounds 1"].map(|how| {
            let out = format!("out{}-{}", how.len(), flags.len());
            short_run(folder, &format!("{flags} {how} --speculation off,draft:3 --out {out}"))
        });
        let per_round = |run: &Value, arm: usize| {
            let drafted = run["arms"][arm]["summary"]["acceptance"]["drafted"].as_u64().unwrap();
            drafted / run["rounds"].as_u64().unwrap()
        };
        assert_eq!(per_round(&a, 1), per_round(&b, 1), "{flags}");
        assert!(a["trust"]["digest"].is_string(), "{flags}");
        assert_eq!(a["trust"]["digest"], b["trust"]["digest"], "{flags}");
        assert!(a["arms"][1]["summary"]["acceptance"]["drafted"].as_u64().unwrap() > 0, "{flags}");
    }
}

#[test]
fn a_run_stores_its_spec_rounds_record_and_report() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = short_run(folder, "--rounds 2 --speculation draft:2 --out kept");
    // The control was not named and was added.
    let verdicts: Vec<&Value> = run["arms"].as_array().unwrap().iter().map(|arm| &arm["verdict"]).collect();
    assert_eq!(verdicts, ["reference", "same_bits"]);
    // What was run, two rounds, and why it ended.
    assert_eq!(fs::read_to_string(folder.join("kept/rounds.jsonl")).unwrap().lines().count(), 4);
    let record: Value = serde_json::from_str(&fs::read_to_string(folder.join("kept/record.json")).unwrap()).unwrap();
    assert_eq!(record, run);
    assert!(fs::read_to_string(folder.join("kept/report.md")).unwrap().contains("| draft:2"));
    // The stored spec repeats the run, and a stored run is never overwritten.
    let again = short_run(folder, "--spec kept/spec.toml --out again");
    assert_eq!(again["cells"], run["cells"]);
    assert_eq!(again["trust"]["digest"], run["trust"]["digest"]);
    refuses(folder, "run --num-prompts 1 --rounds 1 --out kept", &["kept", "--out"]);
    // A record is derived again from what was written down, and the spec can be run again from the folder.
    fs::remove_file(folder.join("kept/record.json")).unwrap();
    let report = specquant(folder, "report kept --json");
    assert_eq!(serde_json::from_slice::<Value>(&report.stdout).unwrap(), run);
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(folder.join("kept/record.json")).unwrap()).unwrap(), run);
    let rerun = specquant(folder, "rerun kept --out third");
    assert!(String::from_utf8_lossy(&rerun.stderr).contains("Same exact digest as kept"), "{rerun:?}");
    refuses(folder, "run --resume kept", &["kept", "has ended", "rerun"]);
}

/// Starts a long run in `folder` and sends it a signal after its second round. Returns its exit code and stdout.
#[cfg(unix)]
fn cut_off(folder: &Path, signal: &str) -> (Option<i32>, String) {
    let mut run = Command::new(env!("CARGO_BIN_EXE_specquant"))
        .args(["run", "--num-prompts", "2", "--max-new-tokens", "16", "--rounds", "1000", "--out", "cut"])
        .args(["--speculation", "draft:2"])
        .current_dir(folder)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while rounds(folder) < 2 {
        assert!(run.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let asked = Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap();
    assert!(asked.success());
    let output = run.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Whole rounds in the folder of the run that is cut off.
#[cfg(unix)]
fn rounds(folder: &Path) -> usize {
    let text = fs::read_to_string(folder.join("cut/rounds.jsonl")).unwrap_or_default();
    text.split_inclusive('\n').filter(|line| line.starts_with("{\"round\"") && line.ends_with('\n')).count()
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_keeps_the_rounds_that_ended() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let (code, table) = cut_off(folder.path(), signal);
        assert_eq!(code, Some(130), "{signal}");
        assert!(table.contains("interrupted") && table.contains("=> "), "{table}");
        let record = fs::read_to_string(folder.path().join("cut/record.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        assert_eq!((&record["interrupted"], &record["ended"]), (&true.into(), &"interrupted".into()));
        assert_eq!(record["rounds"].as_u64().unwrap(), rounds(folder.path()) as u64);
    }
}

#[cfg(unix)]
#[test]
fn a_killed_run_is_taken_up_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (code, _) = cut_off(folder, "-KILL");
    assert_eq!(code, None);
    let ended = rounds(folder);
    // A line in the making is what a kill may leave behind.
    let lines = folder.join("cut/rounds.jsonl");
    let mut text = fs::read_to_string(&lines).unwrap();
    text.truncate(text.rfind('\n').unwrap() + 1);
    fs::write(&lines, format!("{text}{{\"round\":{{\"num")).unwrap();
    // The spec asks for a thousand rounds; a copy asks for two more than there are.
    let spec = folder.join("cut/spec.toml");
    replace(&spec, "rounds = 1000", &format!("rounds = {}", ended + 2));
    refuses(folder, "run --resume cut", &["cut", "cells", "rerun"]);
    let whole = fs::read_to_string(&lines).unwrap();
    fs::write(&lines, whole.replace("\"rounds\":1000", &format!("\"rounds\":{}", ended + 2))).unwrap();
    let resumed = specquant(folder, "run --resume cut --json");
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    let record: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!((&record["rounds"], &record["ended"]), (&(ended + 2).into(), &"rounds".into()));
    assert_eq!(record["resumed"].as_array().unwrap().len(), 1);
    assert!(record["trust"]["digest"].is_string(), "rounds before and after agree");
    let schema: Value = serde_json::from_slice(&specquant(folder, "schema").stdout).unwrap();
    let errors: Vec<String> =
        jsonschema::validator_for(&schema).unwrap().iter_errors(&record).map(|error| error.to_string()).collect();
    assert_eq!(errors, [""; 0]);
    refuses(folder, "run --resume cut --rounds 3", &["--resume", "no other flag"]);
    refuses(folder, "run --resume nowhere", &["nowhere", "spec.toml", "folder of a run"]);
}

#[test]
fn plans_are_printed_and_nothing_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let print = |words: &str| {
        let output = specquant(folder, words);
        assert_eq!(output.status.code(), Some(0), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = print("run --dry-run --weights f32,f16 --time-budget 2m");
    assert_eq!(plan.lines().filter(|line| line.starts_with("cell")).count(), 6, "{plan}");
    assert!(plan.contains("fits") && plan.contains("at most 120 s") && plan.contains("7 passes"), "{plan}");
    // What is printed as a spec is a spec, and makes the same cells.
    fs::write(folder.join("spec.toml"), print("run --print-spec --num-prompts 3")).unwrap();
    let cells = |words: &str| {
        print(words).lines().filter(|line| line.starts_with("cell")).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(cells("run --dry-run --spec spec.toml"), cells("run --dry-run --num-prompts 3"));
    refuses(folder, "run --print-spec --weights q9", &["q9"]);
    assert!(print("completions bash").contains("--time-budget"));
    assert!(print("metrics").contains("latency.ttft_ms") && print("metrics --json").contains("\"exact\""));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing was stored");
}

#[test]
fn doctor_measures_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let output = specquant(folder.path(), "doctor --json --memory 16");
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let value = |name: &str| found[name].as_f64().unwrap();
    // Between a very slow and an impossibly fast machine.
    for bandwidth in ["read_one", "read_all", "read_cached"] {
        assert!((1e7..1e14).contains(&value(bandwidth)), "{bandwidth} {}", value(bandwidth));
    }
    assert!((1e7..1e15).contains(&value("peak_flops")) && (0.1..1e6).contains(&value("clock_ns")));
    assert!(found["fix"].is_array() && found["machine"]["cpu"].is_string() && found["build"]["commit"].is_string());
    refuses(folder.path(), "doctor --threads 5000", &["threads 5000", "1024"]);
}

#[test]
fn sampling_is_what_the_flags_say_whatever_the_folder_suggests() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let suggested = model(folder, "suggests").join("generation_config.json");
    let text = fs::read_to_string(&suggested).unwrap();
    let more = "{\"do_sample\": true, \"temperature\": 1.0, \"top_k\": 64, \"top_p\": 0.95,";
    fs::write(&suggested, text.replacen('{', more, 1)).unwrap();
    let output =
        specquant(folder, "generate --json --prompt impl --max-new-tokens 9 --target suggests --speculation off");
    let suggests: Value = serde_json::from_slice(&output.stdout).unwrap();
    let output =
        specquant(folder, "generate --json --prompt impl --max-new-tokens 9 --target bundled:draft --speculation off");
    let plain: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(suggests["tokens"], plain["tokens"]);
    assert_eq!(suggests["spec"]["sampling"]["temperature"], 0.0);
}

#[test]
fn generate_is_the_same_with_and_without_a_draft() {
    let folder = tempfile::tempdir().unwrap();
    let text = |flags: &str| {
        let words = format!("generate --json --max-new-tokens 24 --prompt impl {flags}");
        let output = specquant(folder.path(), &words);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        (document["text"].clone(), document["tokens"].clone())
    };
    assert_eq!(text("--speculation off"), text("--speculation draft:3"));
    assert_ne!(text("--temperature 1 --seed 1"), text("--temperature 1 --seed 2"));
}

/// Changes f16 tensors of a model; `change` gets the name, the shape and the elements.
fn edit_tensors(folder: &Path, change: impl Fn(&str, &[u64], &mut [half::f16])) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    for (name, entry) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let numbers =
            |key: &str| entry[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(entry["dtype"], "F16");
        let [begin, end] = numbers("data_offsets")[..] else { panic!("{entry}") };
        let stored = &mut bytes[start + begin as usize..start + end as usize];
        let halves = stored.as_chunks::<2>().0;
        let mut elements: Vec<half::f16> = halves.iter().map(|bytes| half::f16::from_le_bytes(*bytes)).collect();
        change(name, &numbers("shape"), &mut elements);
        for (bytes, element) in stored.as_chunks_mut::<2>().0.iter_mut().zip(elements) {
            *bytes = element.to_le_bytes();
        }
    }
    fs::write(path, bytes).unwrap();
}

/// The same function of its inputs in f16: in every group of 32 one activation is made small and its weights large, which
/// leaves nothing of the others where a group has one scale.
fn with_outliers(name: &str, shape: &[u64], elements: &mut [half::f16]) {
    let scaled = |element: &mut half::f16, by: f32| *element = half::f16::from_f32(element.to_f32() * by);
    let reads_a_norm = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"].iter().any(|part| name.contains(part));
    if name.ends_with("input_layernorm.weight") || name.ends_with("post_attention_layernorm.weight") {
        elements.iter_mut().step_by(32).for_each(|element| scaled(element, 1.0 / 512.0));
    } else if reads_a_norm {
        let rows = elements.chunks_mut(shape[1] as usize);
        rows.for_each(|row| row.iter_mut().step_by(32).for_each(|element| scaled(element, 512.0)));
    }
}

#[test]
fn a_draft_that_its_format_breaks_raises_the_alarm() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path(), "sound");
    edit_tensors(&model(folder.path(), "outliers"), with_outliers);
    // Nothing is changed by reading and writing, and the outliers change nothing in f16.
    for (draft, format, alarm) in
        [("sound", "int4:g32", false), ("outliers", "f16", false), ("outliers", "int4:g32", true)]
    {
        let words = format!(
            "run --speculation draft:2 --draft {draft} --draft-weights {format} --rounds 1 --num-prompts 2 \
             --max-new-tokens 8 --out {draft}-{format}"
        );
        let output = specquant(folder.path(), &words);
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{error}");
        assert_eq!(text.contains("ALARM: the draft in int4:g32"), alarm, "{draft} in {format}: {text}");
        let record = fs::read(folder.path().join(format!("{draft}-{format}/record.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let accepted = record["arms"][1]["summary"]["acceptance"]["accepted"].as_u64().unwrap();
        assert_eq!(accepted < 3, alarm, "{draft} in {format} had {accepted} tokens accepted");
    }
}
