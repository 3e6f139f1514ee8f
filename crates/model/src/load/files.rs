//! The files of one model: a Hugging Face folder, or the same files in memory.
//!
//! Nothing is kept open: a file is mapped when it is read and released when its `Content` is dropped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use specquant_core::FileHash;
use specquant_kernels::Mapped;

use super::checkpoint::Checkpoint;
use crate::config::Config;
use crate::tokenizer::Tokenizer;

/// Where a model's files are.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    name: String,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// Files are replaced, never rewritten, while they are read: see `Mapped`.
    Folder(PathBuf),
    Memory(BTreeMap<String, Cow<'static, [u8]>>),
}

/// The bytes of one file.
pub(crate) enum Content<'a> {
    Mapped(Mapped),
    Memory(&'a [u8]),
}

impl Deref for Content<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Content::Mapped(file) => file,
            Content::Memory(bytes) => bytes,
        }
    }
}

impl ModelFiles {
    /// A folder as Hugging Face lays it out: `config.json`, `tokenizer.json`, `model.safetensors` (or
    /// `model.safetensors.index.json` and the files that it names) and optionally `generation_config.json`.
    ///
    /// # Errors
    /// When there is no such folder, or no `config.json` in it.
    pub fn folder(path: &Path) -> Result<ModelFiles> {
        if !path.is_dir() {
            bail!("{}: not a folder; give the folder of a Hugging Face checkpoint, or `bundled`", path.display());
        }
        if !path.join("config.json").is_file() {
            bail!("{}: no config.json in this folder; is it the folder of a checkpoint?", path.display());
        }
        let folder = path.canonicalize().with_context(|| format!("{}", path.display()))?;
        let name = folder.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
        Ok(ModelFiles { name: name.into_owned(), source: Source::Folder(path.to_path_buf()) })
    }

    /// Files held in memory, by the names that they have in a folder.
    pub fn memory(name: &str, files: BTreeMap<String, Cow<'static, [u8]>>) -> ModelFiles {
        ModelFiles { name: name.to_string(), source: Source::Memory(files) }
    }

    /// The folder's name, or `bundled target`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape of the model.
    ///
    /// # Errors
    /// As [`Config::parse`], with the folder.
    pub fn config(&self) -> Result<Config> {
        let config = self.read("config.json")?;
        let generation = self.read_if_there("generation_config.json")?;
        Config::parse(&config, generation.as_deref()).with_context(|| self.place())
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// When `tokenizer.json` is missing or cannot be read, or knows ids that the model has no embedding for.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = Tokenizer::parse(&self.name, &self.read("tokenizer.json")?).with_context(|| self.place())?;
        let (ids, vocab) = (specquant_core::Text::vocab(&tokenizer), self.config()?.vocab_size);
        if ids > vocab {
            bail!(
                "{}: tokenizer.json has ids up to {}, config.json has vocab_size {vocab}: the files are of two models",
                self.place(),
                ids - 1
            );
        }
        Ok(tokenizer)
    }

    /// The hashes of all files that the model is made of.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn hashes(&self) -> Result<Vec<FileHash>> {
        let hash = |file: &str, content: &[u8]| FileHash::of(format!("{}/{file}", self.name), content);
        let mut hashes = Vec::new();
        for file in ["config.json", "generation_config.json", "tokenizer.json"] {
            hashes.extend(self.read_if_there(file)?.map(|content| hash(file, &content)));
        }
        let checkpoint = Checkpoint::open(self)?;
        hashes.extend(checkpoint.shards().iter().map(|shard| hash(&shard.file, &shard.bytes)));
        Ok(hashes)
    }

    /// Where the files are, for messages.
    pub(crate) fn place(&self) -> String {
        match &self.source {
            Source::Folder(path) => path.display().to_string(),
            Source::Memory(_) => self.name.clone(),
        }
    }

    /// The bytes of a file that must be there.
    pub(crate) fn read(&self, file: &str) -> Result<Content<'_>> {
        self.read_if_there(file)?.with_context(|| format!("{}: {file} is missing", self.place()))
    }

    /// The bytes of a file, or `None` where there is no such file.
    pub(crate) fn read_if_there(&self, file: &str) -> Result<Option<Content<'_>>> {
        match &self.source {
            Source::Memory(files) => Ok(files.get(file).map(|bytes| Content::Memory(bytes))),
            Source::Folder(folder) => {
                let path = folder.join(file);
                let mapped = match File::open(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                    file => file.and_then(|file| Mapped::new(&file)),
                };
                Ok(Some(Content::Mapped(mapped.with_context(|| format!("{}", path.display()))?)))
            }
        }
    }
}
