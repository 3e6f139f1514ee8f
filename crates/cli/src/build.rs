//! What the build script found out, as a value.

use specquant_machine::Build;

/// How this program came about.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SPECQUANT_COMMIT").into(),
        dirty: env!("SPECQUANT_DIRTY").into(),
        rustc: env!("SPECQUANT_RUSTC").into(),
        target: env!("SPECQUANT_TARGET").into(),
        profile: env!("SPECQUANT_PROFILE").into(),
        rustflags: env!("SPECQUANT_RUSTFLAGS").into(),
        lock_sha256: env!("SPECQUANT_LOCK").into(),
    }
}
