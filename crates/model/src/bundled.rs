//! The bundled pair, inside the binary: a target and a draft that share a vocabulary.

use std::borrow::Cow;

use anyhow::{Result, bail};

use crate::load::ModelFiles;

/// Name and contents of each file of one bundled model.
macro_rules! embedded {
    ($folder:literal: $($file:literal),*) => {
        [$(($file, include_bytes!(concat!("../../../models/", $folder, "/", $file)).as_slice())),*]
    };
}

/// The bundled `target` or `draft`.
///
/// # Errors
/// When `role` is neither.
pub fn bundled(role: &str) -> Result<ModelFiles> {
    let files = match role {
        "target" => {
            embedded!("target": "config.json", "generation_config.json", "tokenizer.json", "model.safetensors")
        }
        "draft" => embedded!("draft": "config.json", "generation_config.json", "tokenizer.json", "model.safetensors"),
        _ => bail!("no bundled model `{role}`: there is a `target` and a `draft`"),
    };
    let files = files.map(|(name, bytes)| (name.to_string(), Cow::Borrowed(bytes)));
    Ok(ModelFiles::memory(&format!("bundled {role}"), files.into()))
}
