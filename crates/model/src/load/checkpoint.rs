//! The tensors of a checkpoint, in one safetensors file or in the shards that an index names.
//!
//! A checkpoint that exists has whole files: every tensor's bytes are there, and none is in two files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype as StoredDtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde_json::Value;
use specquant_kernels::{DenseMatrix, Dtype};

use super::files::{Content, ModelFiles};
use super::weights::{INDEX, canonical, complete_set};
use crate::json;

/// All tensors of a checkpoint; the files stay mapped as long as it lives.
pub(crate) struct Checkpoint<'a> {
    pub(crate) place: String,
    shards: Vec<Shard<'a>>,
    tensors: BTreeMap<String, Stored>,
    /// How many tensors go by another name in their file, and the first of those names.
    renamed: Option<(usize, String)>,
}

pub(crate) struct Shard<'a> {
    pub(crate) file: String,
    pub(crate) bytes: Content<'a>,
}

/// Where a tensor is and what it is.
pub(crate) struct Stored {
    shard: usize,
    range: Range<usize>,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: StoredDtype,
}

impl<'a> Checkpoint<'a> {
    /// Maps the files and reads their headers. An index decides which files are the model; without one it is the only
    /// complete set.
    ///
    /// # Errors
    /// A file that is missing, truncated or not safetensors, or a shard that does not hold what the index says.
    pub(crate) fn open(files: &'a ModelFiles) -> Result<Checkpoint<'a>> {
        let (place, tensors) = (files.place(), BTreeMap::new());
        let mut checkpoint = Checkpoint { place, shards: Vec::new(), tensors, renamed: None };
        let Some(index) = files.read_if_there(INDEX)? else {
            for file in complete_set(files)? {
                checkpoint.add(&file, files.read(&file)?)?;
            }
            return Ok(checkpoint);
        };
        let weight_map = weight_map(&index).with_context(|| format!("{}: {INDEX}", checkpoint.place))?;
        let shards: BTreeSet<&String> = weight_map.values().collect();
        let mut missing = Vec::new();
        for file in &shards {
            match files.read_if_there(file)? {
                Some(bytes) => checkpoint.add(file, bytes)?,
                None => missing.push(file.as_str()),
            }
        }
        if !missing.is_empty() {
            let (place, all, n) = (&checkpoint.place, shards.len(), missing.len());
            let other = complete_set(files).map_or(String::new(), |set| {
                format!("; {} is complete: if that is the model, remove the index", set[0])
            });
            bail!("{place}: {INDEX} names {all} files, of which {n} missing: {}{other}", missing.join(", "));
        }
        checkpoint.agree(&weight_map)?;
        Ok(checkpoint)
    }

    /// Whether an index says the same as the headers of the files that it names.
    fn agree(&self, weight_map: &BTreeMap<String, String>) -> Result<()> {
        let mut mapped = BTreeSet::new();
        for (tensor, file) in weight_map {
            let name = canonical(tensor);
            let found = self.tensors.get(&name).map(|stored| &self.shards[stored.shard].file);
            ensure!(
                found == Some(file),
                "{}: {INDEX} says that `{tensor}` is in {file}; it is {}",
                self.place,
                found.map_or("in no file".to_string(), |found| format!("in {found}"))
            );
            mapped.insert(name);
        }
        if let Some(more) = self.tensors.keys().find(|name| !mapped.contains(*name)) {
            let (place, n, all) = (&self.place, mapped.len(), self.tensors.len());
            bail!(
                "{place}: {INDEX} names {n} of the {all} tensors in its files, not `{more}`: it is of another checkpoint"
            );
        }
        Ok(())
    }

    fn add(&mut self, file: &str, bytes: Content<'a>) -> Result<()> {
        let (start, metadata) = read_header(&bytes).with_context(|| format!("{}: {file}", self.place))?;
        let shard = self.shards.len();
        for (stored_as, info) in metadata.tensors() {
            if stored_as.contains("flat_param") {
                bail!(
                    "{}: {file}: `{stored_as}` is a flattened parameter of FSDP, from which tensors cannot be told: save a full \
                     state dict, or join the shards with `accelerate merge-weights`",
                    self.place
                );
            }
            let name = canonical(&stored_as);
            if name != stored_as {
                self.renamed.get_or_insert((0, stored_as.clone())).0 += 1;
            }
            let (from, to) = info.data_offsets;
            let range = start + from..start + to;
            let stored = Stored { shard, range, shape: info.shape.clone(), dtype: info.dtype };
            if let Some(other) = self.tensors.insert(name.clone(), stored) {
                let other = self.shards.get(other.shard).map_or(file, |shard| &shard.file);
                bail!(
                    "{}: tensor `{name}` is in {other} and, as `{stored_as}`, in {file}; one of them must go",
                    self.place
                );
            }
        }
        self.shards.push(Shard { file: file.to_string(), bytes });
        Ok(())
    }

    /// By what other names tensors go in the files, in a sentence.
    pub(crate) fn renamed(&self) -> Option<String> {
        let (n, first) = self.renamed.as_ref()?;
        Some(format!("{n} tensors go by other names in the files: `{first}` is read as `{}`", canonical(first)))
    }

    /// The files and their bytes.
    pub(crate) fn shards(&self) -> &[Shard<'a>] {
        &self.shards
    }

    /// Every tensor by name.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, Stored> {
        &self.tensors
    }

    /// A matrix that `check` has found; a vector is a matrix with one row.
    pub(crate) fn matrix<'b>(&'b self, name: &'b str) -> Result<DenseMatrix<'b>> {
        let stored = self.tensors.get(name).with_context(|| format!("{}: no tensor `{name}`", self.place))?;
        let dtype = float(stored.dtype).with_context(|| format!("`{name}` has dtype {}", stored.dtype))?;
        let (outputs, inputs) = match stored.shape[..] {
            [outputs, inputs] => (outputs, inputs),
            [inputs] => (1, inputs),
            _ => bail!("`{name}` has shape {:?}", stored.shape),
        };
        Ok(DenseMatrix { name, outputs, inputs, dtype, bytes: self.bytes(stored) })
    }

    /// The elements of a tensor.
    pub(crate) fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.shards[stored.shard].bytes[stored.range.clone()]
    }

    /// Folder and file of a tensor, for messages.
    pub(crate) fn file(&self, stored: &Stored) -> String {
        format!("{}: {}", self.place, self.shards[stored.shard].file)
    }
}

/// The element types that weights are read from.
pub(crate) fn float(dtype: StoredDtype) -> Option<Dtype> {
    match dtype {
        StoredDtype::F32 => Some(Dtype::F32),
        StoredDtype::F16 => Some(Dtype::F16),
        StoredDtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// Where the data begins, and what is in it; the file is as long as its header says.
fn read_header(bytes: &[u8]) -> Result<(usize, Metadata)> {
    let found = bytes.len() as u64;
    let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
    let start = length.and_then(|length| length.checked_add(8)).filter(|&start| start <= found);
    let Some(start) = start else {
        bail!(
            "truncated, or not a safetensors file: the header should have {} bytes, the file has {found}",
            length.map_or("at least 8".to_string(), |length| length.to_string())
        );
    };
    let start = start as usize;
    let metadata: Metadata = json::parse(&bytes[8..start]).map_err(|error| match strange(&bytes[8..start]) {
        Some(tensor) => error.context(format!("not a safetensors header that this version reads: `{tensor}`")),
        None => error.context("not a safetensors header"),
    })?;
    let expected = start as u64 + metadata.data_len() as u64;
    ensure!(
        expected == found,
        "{}: the header describes a file of {expected} bytes, found {found}; copy or download it again",
        if found < expected { "truncated" } else { "bytes after the last tensor" }
    );
    Ok((start, metadata))
}

/// The first tensor of a header whose description cannot be read, such as one of a type that is not known.
fn strange(header: &[u8]) -> Option<String> {
    let tensors: BTreeMap<String, Value> = json::parse(header).ok()?;
    let known = |value: &Value| TensorInfo::deserialize(value).is_ok();
    tensors.into_iter().find(|(name, value)| name != "__metadata__" && !known(value)).map(|(name, _)| name)
}

/// The `weight_map` of an index: the file of each tensor.
fn weight_map(index: &[u8]) -> Result<BTreeMap<String, String>> {
    let index: Value = json::parse(index).context("not valid JSON")?;
    let map = index.get("weight_map").and_then(Value::as_object).context("weight_map must be an object")?;
    let entry = |(tensor, file): (&String, &Value)| {
        let name = file.as_str().filter(|file| !file.contains(['/', '\\']) && *file != "..");
        let name =
            name.with_context(|| format!("weight_map: `{tensor}` is {file}: must be the name of a file here"))?;
        Ok((tensor.clone(), name.to_string()))
    };
    map.iter().map(entry).collect()
}
