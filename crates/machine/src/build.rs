//! What was built: the facts that only the build knows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the program came about. What the build could not tell is `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Build {
    /// Version of the program.
    pub version: String,
    /// The commit of its source.
    pub commit: String,
    /// Whether files under version control had changed since, or `unknown`.
    pub dirty: String,
    /// The compiler.
    pub rustc: String,
    /// The platform that it was compiled for.
    pub target: String,
    /// The profile, such as `release`.
    pub profile: String,
    /// Further compiler flags, as `RUSTFLAGS` held them.
    pub rustflags: String,
    /// SHA-256 of `Cargo.lock`, which names every dependency.
    pub lock_sha256: String,
}
