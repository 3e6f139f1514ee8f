//! The instruction-set paths. Bits are promised within one path; across paths results agree to a bound.

use std::fmt;

/// An instruction-set path of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable code, written so that the compiler vectorizes it; multiplies and adds round separately.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI: 16 lanes.
    Avx512,
}

impl Isa {
    /// Every path, the fastest last.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// The fastest path of this CPU.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Whether this CPU has the path's instructions.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let (avx2, avx512) = (
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, avx512) = (false, false);
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => avx2 && avx512,
        }
    }

    /// Outputs of one panel of a packed matrix: two vectors, which leaves registers for six rows of accumulators.
    pub(crate) fn panel(self) -> usize {
        match self {
            Isa::Scalar => 16,
            Isa::Avx2 => 16,
            Isa::Avx512 => 32,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}
