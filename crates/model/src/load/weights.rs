//! Which files of a folder hold a model's weights, and by which names its tensors go.
//!
//! One set of files is the model, or the folder is refused: nothing is read because it happens to lie there.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::files::{Entry, ModelFiles};

/// The one file of a model that is not split.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// Which tensor is in which file, for one that is.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Beginnings of safetensors files that are no part of a Hugging Face model: Mistral's own layout, and adapters.
const FOREIGN: [&str; 2] = ["consolidated", "adapter_model"];

/// Ends of names by which weights go that are not read from here.
const OTHER_WEIGHTS: [&str; 10] =
    [".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".msgpack", ".h5", ".distcp"];

/// The files of the model where no index names them: the one that is not split, or all shards of one that is.
///
/// # Errors
/// No complete set, with what is there instead and what to do; or two, with the names of both.
pub(crate) fn complete_set(files: &ModelFiles) -> Result<Vec<String>> {
    let (place, entries) = (files.place(), files.entries()?);
    let (mut complete, mut partial) = (Vec::new(), Vec::new());
    for (stem, found) in sets(&entries) {
        let total = found.keys().next().map_or(0, |(_, total)| *total);
        let missing: Vec<String> =
            (1..=total).filter(|n| !found.contains_key(&(*n, total))).map(|n| n.to_string()).collect();
        let names: Vec<String> = found.into_values().collect();
        if missing.is_empty() { complete.push(names) } else { partial.push((stem, total, missing)) }
    }
    match (&complete[..], &partial[..]) {
        ([only], _) => Ok(only.clone()),
        ([], [(stem, total, missing), ..]) => {
            bail!("{place}: of the {total} shards of {stem}, {} missing: copy or download them again", listed(missing))
        }
        ([], []) => match instead(&entries) {
            Some(why) => bail!("{place}: {why}"),
            None => {
                bail!("{place}: neither {WEIGHTS} nor {INDEX} is there; give the folder that has the model's weights")
            }
        },
        ([one, other, ..], _) => {
            bail!("{place}: {} and {} could both be the model: move one of them away, or add {INDEX}", one[0], other[0])
        }
    }
}

fn listed(missing: &[String]) -> String {
    format!(
        "{} {} {}",
        if missing.len() == 1 { "number" } else { "numbers" },
        missing.join(", "),
        if missing.len() == 1 { "is" } else { "are" }
    )
}

/// Safetensors files by what they are parts of: number and total of each shard, 1 and 1 for a file that is whole.
fn sets(entries: &[Entry]) -> BTreeMap<String, BTreeMap<(u32, u32), String>> {
    let mut sets: BTreeMap<String, BTreeMap<(u32, u32), String>> = BTreeMap::new();
    for Entry { name, .. } in entries.iter().filter(|entry| !entry.folder) {
        let split = shard(name);
        // A file may also be numbered behind its ending: `model.safetensors-00001-of-00002.safetensors`.
        let Some(stem) =
            name.strip_suffix(".safetensors").filter(|_| !FOREIGN.iter().any(|begin| name.starts_with(begin)))
        else {
            continue;
        };
        let (stem, at) =
            split.map_or((stem.to_string(), (1, 1)), |(stem, n, total)| (format!("{stem}-of-{total}"), (n, total)));
        sets.entry(stem).or_default().insert(at, name.clone());
    }
    sets
}

/// Stem, number and total of `model-00001-of-00003.safetensors`.
fn shard(name: &str) -> Option<(&str, u32, u32)> {
    let (stem, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, total.parse().ok().filter(|total| (1..100_000).contains(total))?))
}

/// What a folder without weights that can be read holds instead, and what to do about it.
pub(crate) fn instead(entries: &[Entry]) -> Option<String> {
    let has = |wanted: &dyn Fn(&str) -> bool| entries.iter().any(|entry| wanted(&entry.name));
    let why = if has(&|name| name.starts_with("adapter_config.json") || name.starts_with("adapter_model")) {
        "this is an adapter (LoRA), which changes a model and is none: merge it into its base model, with peft's \
         merge_and_unload, and give the folder of the result"
    } else if has(&|name| {
        name.starts_with("global_step") || name.starts_with("zero_pp_rank") || name == "zero_to_fp32.py"
    }) {
        "this is a training checkpoint of DeepSpeed ZeRO, in which weights are cut across ranks: join them with its \
         zero_to_fp32.py"
    } else if has(&|name| name.ends_with(".distcp") || name.contains("fsdp")) {
        "this is a training checkpoint of FSDP, in which weights are flattened and cut across ranks: join them with \
         `accelerate merge-weights`"
    } else if has(&|name| name.starts_with("consolidated")) {
        "these are weights in Mistral's own layout (consolidated.*): use the same model's Hugging Face weights, \
         model.safetensors or model-00001-of-..."
    } else if has(&|name| name.ends_with(".gguf")) {
        "there is only GGUF, which is not read: use the safetensors folder that it was made from"
    } else if has(&|name| name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) {
        "there are only pickled weights (pytorch_model.bin), which can run code when they are read: convert them to safetensors, \
         with transformers' save_pretrained"
    } else {
        return None;
    };
    Some(why.to_string())
}

/// Whether a file or folder that is not read looks like weights.
pub(crate) fn looks_like_weights(entry: &Entry) -> bool {
    let name = entry.name.as_str();
    if entry.folder { name == "original" } else { OTHER_WEIGHTS.iter().any(|end| name.ends_with(end)) }
}

/// What wrappers put in front of a tensor's name.
const WRAPPERS: [&str; 4] = ["_orig_mod.", "module.", "_fsdp_wrapped_module.", "_forward_module."];

/// The name that a Llama checkpoint gives a tensor, whatever it goes by here.
///
/// Names may be bare, as a model without its head has them, wrapped, as compilers and trainers leave them, or those of the
/// text part of a model that also sees.
pub(crate) fn canonical(name: &str) -> String {
    let mut rest = name;
    let mut stripped = true;
    while stripped {
        stripped = false;
        for wrapper in WRAPPERS {
            if let Some(inner) = rest.strip_prefix(wrapper) {
                (rest, stripped) = (inner, true);
            }
        }
    }
    let inner = rest.strip_prefix("language_model.").unwrap_or(rest);
    let inner = inner.strip_prefix("model.").unwrap_or(inner);
    let inner = inner.strip_prefix("language_model.").unwrap_or(inner);
    if inner.starts_with("lm_head.") {
        return inner.to_string();
    }
    let known = ["layers.", "embed_tokens.", "norm."].iter().any(|begin| inner.starts_with(begin));
    if known { format!("model.{inner}") } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: &str) {
        assert_eq!(canonical(name), expected, "{name}");
    }

    #[test]
    fn names_are_those_of_llama_whatever_wraps_them() {
        for name in
            ["model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
        {
            check(name, name);
            let bare = name.strip_prefix("model.").unwrap_or(name);
            check(bare, name);
            for wrapped in ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."] {
                check(&format!("{wrapped}{name}"), name);
                check(&format!("{wrapped}{bare}"), name);
            }
            check(&format!("language_model.{name}"), name);
            check(&format!("model.language_model.{bare}"), name);
        }
        for name in
            ["vision_tower.layers.0.weight", "model.visual.norm.weight", "transformer.h.0.weight", "embed.weight"]
        {
            check(name, name);
        }
    }

    #[test]
    fn shards_are_told_from_whole_files() {
        assert_eq!(shard("model-00001-of-00003.safetensors"), Some(("model", 1, 3)));
        assert_eq!(shard("model.safetensors-00002-of-00002.safetensors"), Some(("model.safetensors", 2, 2)));
        for whole in
            ["model.safetensors", "best-of-breed.safetensors", "a-1-of-0.safetensors", "model-00001-of-00003.bin"]
        {
            assert_eq!(shard(whole), None, "{whole}");
        }
    }
}
