//! A file in memory, read-only.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A read-only memory map of a whole file.
///
/// The file must keep its length while it is mapped: reading a page that another program has cut off ends the process
/// with SIGBUS, and a file changed in place changes under its reader. Checkpoints are replaced, not rewritten.
#[derive(Debug)]
pub struct Mapped {
    map: memmap2::Mmap,
}

impl Mapped {
    /// Maps the file.
    ///
    /// # Errors
    /// When the system cannot map it.
    pub fn new(file: &File) -> io::Result<Mapped> {
        // SAFETY: the type's contract, which callers read, demands that nobody truncates or rewrites the file.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Mapped { map })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::Mapped;

    #[test]
    fn a_map_is_the_files_bytes() {
        for bytes in [&b""[..], b"weights"] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(&*Mapped::new(&file).unwrap(), bytes);
        }
    }
}
