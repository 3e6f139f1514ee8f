//! Which of a folder's files are the model, and what is said of the others: the kinds of folder that people have.

use std::path::Path;

use serde_json::{Value, json};
use specquant_core::{KvDtype, WeightFormat};
use specquant_model::ModelFiles;

use crate::runs::{loaded, step};
use crate::tiny::{Files, TINY, Tensors, Tiny, model, safetensors};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const HEAD: &str = "lm_head.weight";

/// What a folder made by `change` comes to: parts of what is noted or the files that are not read, or of the error. One that
/// loads must answer as the plain checkpoint does.
fn check(tiny: Tiny, change: impl FnOnce(&mut Files), expected: Result<&[&str], &[&str]>) {
    let mut files = tiny.files();
    change(&mut files);
    let files = model(files);
    match (files.summary(), expected) {
        (Ok(summary), Ok(parts)) => {
            let said = format!("{:?} {:?}", summary.notes, summary.unread);
            assert!(parts.iter().all(|part| said.contains(part)), "{parts:?} are not all in: {said}");
            assert!(!parts.is_empty() || said == "[] []", "{said}");
            let canonical = model(Tiny { shards: 1, ..tiny }.files());
            let slots: Vec<u32> = (0..7).collect();
            let logits = |files: &ModelFiles| {
                step(&mut *loaded(files, WeightFormat::F32, KvDtype::F32, 1), &[1, 5, 9, 2, 6, 4, 60], 0, &slots)
            };
            assert_eq!(logits(&files), logits(&canonical));
        }
        (Err(error), Err(parts)) => {
            let said = format!("{error:#}");
            assert!(parts.iter().all(|part| said.contains(part)), "{parts:?} are not all in: {said}");
        }
        (got, expected) => panic!("{got:?} instead of {expected:?}"),
    }
}

fn with(name: &str, content: impl Into<Vec<u8>>) -> impl FnOnce(&mut Files) {
    let (name, content) = (name.to_string(), content.into());
    move |files| drop(files.insert(name, content))
}

fn moved(from: &str, to: &str) -> impl FnOnce(&mut Files) {
    let (from, to) = (from.to_string(), to.to_string());
    move |files| {
        let content = files.remove(&from).unwrap();
        files.insert(to, content);
    }
}

/// Other weights of the right shapes.
fn strange() -> Vec<u8> {
    let halved = |mut tensors: Tensors| {
        tensors.values_mut().for_each(|(_, elements)| elements.iter_mut().for_each(|x| *x *= 0.5));
        tensors.into_iter().collect::<Vec<_>>()
    };
    safetensors(TINY.dtype, &halved(TINY.tensors()))
}

#[test]
fn an_index_or_the_only_complete_set_is_the_model() {
    let sharded = Tiny { shards: 3, ..TINY };
    check(TINY, |_| {}, Ok(&[]));
    check(sharded, |_| {}, Ok(&[]));
    check(sharded, with(WEIGHTS, strange()), Ok(&[WEIGHTS]));
    check(sharded, |files| drop(files.remove(INDEX)), Ok(&[]));
    check(TINY, moved(WEIGHTS, "weights.safetensors"), Ok(&[]));
    check(TINY, moved(WEIGHTS, "model.safetensors-00001-of-00001.safetensors"), Ok(&[]));
    check(TINY, with("other.safetensors", strange()), Err(&[WEIGHTS, "other.safetensors", "could both"]));
    check(TINY, with("model-00001-of-00002.safetensors", strange()), Ok(&["model-00001-of-00002.safetensors"]));
    for unread in [
        "consolidated.safetensors",
        "pytorch_model.bin",
        "model.gguf",
        "consolidated.00.pth",
        "adapter_model.safetensors",
    ] {
        check(TINY, with(unread, strange()), Ok(&[unread]));
    }
    let gap = |files: &mut Files| {
        files.remove(INDEX);
        files.remove("model-00002-of-00003.safetensors");
    };
    check(sharded, gap, Err(&["of the 3 shards of model", "number 2 is missing"]));
}

#[test]
fn an_index_of_another_checkpoint_is_refused() {
    let sharded = Tiny { shards: 3, ..TINY };
    let stale = json!({ "weight_map": { HEAD: "model-00001-of-00030.safetensors" } }).to_string();
    let stale = stale.into_bytes();
    check(
        TINY,
        with(INDEX, stale),
        Err(&["names 1 files, of which 1 missing: model-00001-of-00030", "remove the index"]),
    );
    let half = |files: &mut Files| {
        let mut index: Value = serde_json::from_slice(&files[INDEX]).unwrap();
        index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
        files.insert(INDEX.into(), index.to_string().into_bytes());
    };
    check(sharded, half, Err(&[INDEX, "not `model.norm.weight`", "another checkpoint"]));
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let twice = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    check(TINY, with(WEIGHTS, twice), Err(&[WEIGHTS, "duplicate key `a`"]));
    let twice = br#"{"weight_map": {"a": "x", "a": "y"}}"#.to_vec();
    check(sharded, with(INDEX, twice), Err(&[INDEX, "duplicate key `a`"]));
}

#[test]
fn tensors_lie_one_behind_the_other_in_any_order() {
    let file = |entries: [(&str, [usize; 2]); 2], bytes: usize| {
        let entry = |(name, [start, end]): (&str, [usize; 2])| {
            let info = json!({ "dtype": "F32", "shape": [(end - start) / 4], "data_offsets": [start, end] });
            (name.to_string(), info)
        };
        let header = Value::from(serde_json::Map::from_iter(entries.map(entry))).to_string().into_bytes();
        with(WEIGHTS, [&(header.len() as u64).to_le_bytes()[..], &header, &vec![0; bytes]].concat())
    };
    let missing: Result<&[&str], &[&str]> = Err(&["model.embed_tokens.weight", "missing among 2 tensors"]);
    check(TINY, file([("a", [0, 8]), ("b", [8, 16])], 16), missing);
    check(TINY, file([("a", [8, 16]), ("b", [0, 8])], 16), missing);
    check(TINY, file([("a", [0, 8]), ("b", [0, 8])], 8), Err(&[WEIGHTS, "invalid offset for tensor `"]));
    check(TINY, file([("a", [0, 8]), ("b", [16, 24])], 24), Err(&[WEIGHTS, "invalid offset for tensor `"]));
}

#[test]
fn a_folder_without_weights_to_read_says_what_it_is() {
    let only = |name: &'static str| moved(WEIGHTS, name);
    check(TINY, only("adapter_model.safetensors"), Err(&["adapter (LoRA)", "merge"]));
    check(TINY, only("pytorch_model.bin"), Err(&["pickled", "convert"]));
    check(TINY, only("pytorch_model-00001-of-00002.bin"), Err(&["pickled"]));
    check(TINY, only("consolidated.safetensors"), Err(&["Mistral's own layout"]));
    check(TINY, only("model-q4.gguf"), Err(&["GGUF"]));
    check(TINY, only("zero_pp_rank_0_mp_rank_00_model_states.pt"), Err(&["DeepSpeed ZeRO", "zero_to_fp32.py"]));
    check(TINY, only("__0_0.distcp"), Err(&["FSDP", "accelerate merge-weights"]));
    check(TINY, only("notes.txt"), Err(&["neither model.safetensors nor model.safetensors.index.json"]));
    let flat = vec![("_fsdp_wrapped_module.flat_param".to_string(), (vec![4], vec![0.0; 4]))];
    check(TINY, with(WEIGHTS, safetensors(TINY.dtype, &flat)), Err(&["flat_param", "FSDP", "accelerate"]));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 98765\n";
    for file in [WEIGHTS, "config.json", "tokenizer.json", "generation_config.json"] {
        check(TINY, with(file, pointer), Err(&[file, "git-lfs pointer to a file of 98765 bytes", "git lfs pull"]));
    }
}

#[test]
fn tensors_may_go_by_wrapped_and_bare_names() {
    let renamed = |rename: fn(&str) -> String| {
        let tensors: Vec<_> = TINY.tensors().into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        with(WEIGHTS, safetensors(TINY.dtype, &tensors))
    };
    let bare = |name: &str| name.strip_prefix("model.").unwrap_or(name).to_string();
    let note: Result<&[&str], &[&str]> = Ok(&["tensors go by other names in the files"]);
    check(TINY, renamed(bare), note);
    for rename in [
        |name: &str| format!("_orig_mod.{name}"),
        |name: &str| format!("module.{name}"),
        |name: &str| format!("language_model.{name}"),
        |name: &str| name.replacen("model.", "model.language_model.", 1),
    ] {
        check(TINY, renamed(rename), note);
    }
    let typo = |name: &str| name.replace("layers.1.mlp.up_proj", "layers.1.mlp.up_porj");
    check(TINY, renamed(typo), Err(&["model.layers.1.mlp.up_proj.weight", "missing"]));
    let both = |tensors: &mut Vec<_>| tensors.push(("module.model.norm.weight".to_string(), (vec![32], vec![1.0; 32])));
    let mut tensors: Vec<_> = TINY.tensors().into_iter().collect();
    both(&mut tensors);
    check(TINY, with(WEIGHTS, safetensors(TINY.dtype, &tensors)), Err(&["model.norm.weight", "as `", "must go"]));
}

#[test]
fn what_is_said_twice_is_told() {
    let head = |change: fn(&mut Vec<f64>)| {
        let mut tensors = TINY.tensors();
        let mut head = tensors["model.embed_tokens.weight"].clone();
        change(&mut head.1);
        tensors.insert(HEAD.into(), head);
        with(WEIGHTS, safetensors(TINY.dtype, &tensors.into_iter().collect::<Vec<_>>()))
    };
    check(TINY, head(|_| {}), Ok(&[]));
    check(
        TINY,
        head(|elements| elements[0] += 1.0),
        Ok(&["`lm_head.weight` has other values", "the embedding is used"]),
    );
    check(TINY, with("quantize_config.json", "{}"), Ok(&["quantize_config.json speaks of quantized weights"]));
    check(TINY, with("quant_config.json", "{}"), Ok(&["quant_config.json speaks of quantized weights"]));
    let config = |key: &'static str, value: Value| {
        move |files: &mut Files| {
            let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
            config[key] = value;
            files.insert("config.json".into(), config.to_string().into_bytes());
        }
    };
    check(TINY, config("x", json!("y")), Ok(&[]));
    check(TINY, with("config.json", [b"\xef\xbb\xbf".to_vec(), TINY.files()["config.json"].clone()].concat()), Ok(&[]));
}

fn write(folder: &Path, files: Files) {
    std::fs::create_dir_all(folder).unwrap();
    files.into_iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
}

#[cfg(unix)]
#[test]
fn the_root_of_a_hub_cache_stands_for_its_main_snapshot() {
    use std::os::unix::fs::symlink;
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("models--org--name");
    let check =
        |expected: Result<(), &[&str]>| match (ModelFiles::folder(&root).and_then(|files| files.summary()), expected) {
            (Ok(summary), Ok(())) => {
                assert_eq!((summary.name.as_str(), summary.unread.len()), ("models--org--name", 0));
                assert_eq!(summary.files[0].bytes, TINY.files()[WEIGHTS].len() as u64);
            }
            (Err(error), Err(parts)) => {
                parts.iter().for_each(|part| assert!(format!("{error:#}").contains(part), "{error:#}"));
            }
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        };
    let snapshot = root.join("snapshots/abc");
    write(&root.join("blobs"), TINY.files());
    std::fs::create_dir_all(&snapshot).unwrap();
    for name in TINY.files().keys() {
        symlink(Path::new("../../blobs").join(name), snapshot.join(name)).unwrap();
    }
    std::fs::create_dir_all(root.join("snapshots/older")).unwrap();
    check(Err(&["refs/main", "which snapshot is meant"]));
    std::fs::create_dir_all(root.join("refs")).unwrap();
    std::fs::write(root.join("refs/main"), "abc\n").unwrap();
    check(Ok(()));
    std::fs::write(root.join("refs/main"), "gone").unwrap();
    check(Err(&["refs/main", "snapshots/gone", "not there"]));
    std::fs::write(root.join("refs/main"), "abc").unwrap();
    std::fs::remove_file(root.join("blobs").join(WEIGHTS)).unwrap();
    check(Err(&["snapshots/abc/model.safetensors", "a link to ../../blobs/model.safetensors, which is not there"]));
}

#[test]
fn folders_and_devices_are_no_files() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("m");
    write(&folder, TINY.files());
    std::fs::create_dir(folder.join("original")).unwrap();
    assert_eq!(ModelFiles::folder(&folder).unwrap().summary().unwrap().unread[0].file, "original/");
    std::fs::create_dir(folder.join("generation_config.json")).unwrap();
    let error = format!("{:#}", ModelFiles::folder(&folder).unwrap().summary().unwrap_err());
    assert!(error.contains("generation_config.json: a folder where a file belongs"), "{error}");
    let adapter = temporary.path().join("adapter");
    write(&adapter, Files::from([("adapter_config.json".to_string(), b"{}".to_vec())]));
    let error = format!("{:#}", ModelFiles::folder(&adapter).unwrap_err());
    assert!(error.contains("adapter (LoRA)"), "{error}");
}
