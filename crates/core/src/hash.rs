//! Which file it was: a name, a length and a hash of the content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A file that decided what came out.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FileHash {
    /// What it is called, such as `bundled target/model.safetensors`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its content, hexadecimal: what model hubs print for large files.
    pub sha256: String,
}

impl FileHash {
    /// The hash of a file with this content.
    pub fn of(name: String, content: &[u8]) -> FileHash {
        let sha256 = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        FileHash { name, bytes: content.len() as u64, sha256 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard() {
        for (content, expected) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ] {
            let hash = FileHash::of("x".into(), content.as_bytes());
            assert_eq!((hash.sha256.as_str(), hash.bytes), (expected, content.len() as u64));
        }
    }
}
