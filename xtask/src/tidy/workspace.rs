//! What tidy reads: the package graph, the members' manifests, the licences that `deny.toml` allows, the Rust sources.
//!
//! All reading happens here, once, before the first rule; paths are kept relative to the root and with `/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::token::{Token, tokens};
use crate::command;

/// Everything that the rules look at.
pub(crate) struct Workspace {
    pub(crate) members: Vec<Member>,
    /// The whole graph: members, dependencies for every platform, every feature.
    pub(crate) packages: Vec<Package>,
    pub(crate) lock: Document,
    pub(crate) allowed_licences: Vec<String>,
    pub(crate) sources: Vec<Source>,
}

/// A package of the workspace with the text of its manifest.
pub(crate) struct Member {
    pub(crate) package: Package,
    pub(crate) manifest: Document,
}

/// A Rust file.
pub(crate) struct Source {
    pub(crate) document: Document,
    pub(crate) tokens: Vec<Token>,
}

/// A text file.
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A package as `cargo metadata` describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// Absent for a package that lies in a folder of this machine.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A direct dependency, of any kind and for any platform.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) rename: Option<String>,
}

/// A library, binary, test, bench or example.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    target_directory: PathBuf,
}

impl Workspace {
    /// Asks cargo and reads the files below the root.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let metadata = metadata(root)?;
        let members = metadata.packages.iter().filter(|package| metadata.workspace_members.contains(&package.id));
        let members = members.map(|package| Member::read(root, package)).collect::<Result<_>>()?;
        let mut sources = Vec::new();
        read_sources(root, root, &metadata.target_directory, &mut sources)?;
        Ok(Self {
            members,
            lock: Document::read(root, &root.join("Cargo.lock"))?,
            allowed_licences: allowed_licences(&Document::read(root, &root.join("deny.toml"))?.text)?,
            sources,
            packages: metadata.packages,
        })
    }
}

impl Member {
    fn read(root: &Path, package: &Package) -> Result<Self> {
        Ok(Self { package: package.clone(), manifest: Document::read(root, &package.manifest_path)? })
    }

    /// The line of the manifest that names a dependency.
    pub(crate) fn line_of(&self, dependency: &Dependency) -> usize {
        let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
        self.manifest.line_where(|line| {
            let table = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
            table.is_some_and(|path| path.ends_with(&format!("dependencies.{key}")))
                || line.strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
        })
    }
}

impl Document {
    fn read(root: &Path, path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let path = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        Ok(Self { path, text })
    }

    /// The number, from 1, of the first line that the condition holds for; 1 if there is none.
    pub(crate) fn line_where(&self, condition: impl Fn(&str) -> bool) -> usize {
        self.text.lines().position(condition).map_or(1, |idx| idx + 1)
    }
}

impl Source {
    /// Splits a file into tokens.
    pub(crate) fn new(document: Document) -> Result<Self> {
        let tokens = tokens(&document.text).with_context(|| document.path.clone())?;
        Ok(Self { document, tokens })
    }
}

/// All features are asked for, because the licence of an optional dependency counts as well.
fn metadata(root: &Path) -> Result<Metadata> {
    let mut command = command::cargo(root, "metadata --format-version 1 --all-features --locked");
    let output = command.output().context("cannot start `cargo metadata`")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    serde_json::from_slice(&output.stdout).context("cannot read what `cargo metadata` printed")
}

/// `deny.toml` is the only list, so that tidy and `cargo deny` cannot disagree.
fn allowed_licences(text: &str) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Deny {
        licenses: Licenses,
    }
    #[derive(Deserialize)]
    struct Licenses {
        allow: Vec<String>,
    }
    let deny: Deny = toml::from_str(text).context("deny.toml")?;
    Ok(deny.licenses.allow)
}

fn read_sources(root: &Path, folder: &Path, built: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let context = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let (path, name) = (entry.path(), entry.file_name());
        let hidden = name.to_string_lossy().starts_with('.');
        if entry.file_type().with_context(context)?.is_dir() {
            if !hidden && name != "target" && path != built {
                read_sources(root, &path, built, sources)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(Source::new(Document::read(root, &path)?)?);
        }
    }
    Ok(())
}

/// Small values for the tests of the rules.
#[cfg(test)]
pub(crate) mod sample {
    use super::*;

    /// A Rust file with the given path and text.
    pub(crate) fn source(path: &str, text: &str) -> Source {
        Source::new(document(path, text)).unwrap()
    }

    pub(crate) fn document(path: &str, text: &str) -> Document {
        Document { path: path.into(), text: text.into() }
    }

    /// A package from a registry.
    pub(crate) fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            id: format!("{name}@1.0.0"),
            name: name.into(),
            version: "1.0.0".into(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
            manifest_path: PathBuf::new(),
            dependencies: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// A member whose manifest has one dependency a line from line 2 on.
    pub(crate) fn member(name: &str, dependencies: &[&str]) -> Member {
        let lines = dependencies.iter().map(|name| format!("{name}.workspace = true\n"));
        let text = format!("[dependencies]\n{}", lines.collect::<String>());
        let mut package = package(name, Some("MIT"), None);
        package.dependencies =
            dependencies.iter().map(|&name| Dependency { name: name.into(), rename: None }).collect();
        Member { package, manifest: document("Cargo.toml", &text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_found_in_each_way_of_writing_it() {
        let check = |text: &str, rename: Option<&str>, expected| {
            let mut member = sample::member("a", &[]);
            member.manifest.text = text.into();
            let dependency = Dependency { name: "burn".into(), rename: rename.map(str::to_owned) };
            assert_eq!(member.line_of(&dependency), expected, "{text}");
        };
        check("[dependencies]\nburn-cuda = \"1\"\nburn = \"1\"", None, 3);
        check("[dependencies]\nburn.workspace = true", None, 2);
        check("\n\n[dev-dependencies.burn]\nversion = \"1\"", None, 3);
        check("[dependencies]\nfire = { package = \"burn\" }", Some("fire"), 2);
        check("[dependencies]", None, 1);
    }

    #[test]
    fn the_allowed_licences_are_read_from_the_settings_of_cargo_deny() {
        let allowed = allowed_licences("[graph]\nall-features = true\n[licenses]\nallow = [\"MIT\", \"ISC\"]").unwrap();
        assert_eq!(allowed, ["MIT", "ISC"]);
        assert!(allowed_licences("[bans]").is_err());
    }

    #[test]
    fn metadata_is_read_with_the_fields_that_the_rules_need() {
        let text = r#"{"packages": [{"id": "i", "name": "n", "version": "1.0.0", "license": null, "source": null,
            "manifest_path": "m", "dependencies": [{"name": "d", "rename": null, "kind": "dev"}],
            "targets": [{"name": "t", "kind": ["lib"]}]}], "workspace_members": ["i"], "target_directory": "t"}"#;
        let metadata: Metadata = serde_json::from_str(text).unwrap();
        assert_eq!(metadata.packages[0].dependencies[0].name, "d");
    }
}
