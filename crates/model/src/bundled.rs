//! The bundled pair, inside the binary: a target and a draft that share a vocabulary.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::load::ModelFiles;

/// The files of one bundled model, by name.
macro_rules! embedded {
    ($folder:literal) => {
        [
            ("config.json", &include_bytes!(concat!("../../../models/", $folder, "/config.json"))[..]),
            (
                "generation_config.json",
                &include_bytes!(concat!("../../../models/", $folder, "/generation_config.json"))[..],
            ),
            ("tokenizer.json", &include_bytes!(concat!("../../../models/", $folder, "/tokenizer.json"))[..]),
            ("model.safetensors", &include_bytes!(concat!("../../../models/", $folder, "/model.safetensors"))[..]),
        ]
    };
}

static TARGET: [(&str, &[u8]); 4] = embedded!("target");
static DRAFT: [(&str, &[u8]); 4] = embedded!("draft");

/// The bundled `target` or `draft`.
///
/// # Errors
/// When `role` is neither.
pub fn bundled(role: &str) -> Result<ModelFiles> {
    let files = match role {
        "target" => &TARGET,
        "draft" => &DRAFT,
        _ => bail!("no bundled model `{role}`: there is a `target` and a `draft`"),
    };
    let files: BTreeMap<_, _> = files.iter().map(|&(name, bytes)| (name.to_string(), Cow::Borrowed(bytes))).collect();
    Ok(ModelFiles::memory(&format!("bundled {role}"), files))
}
