//! Which instruction set the CPU kernels use, and the one thread pool that they share.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the CPU kernels are compiled for.
///
/// The best one that the processor has is taken at run time; [`with_path`] forces another, for tests and comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CpuPath {
    /// Plain Rust, on any processor.
    Portable,
    /// AArch64 without the dot-product extension.
    Neon,
    /// AArch64 with the 8-bit dot product (`sdot`; every Apple M chip has it).
    NeonDot,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and VNNI.
    Avx512,
}

impl CpuPath {
    /// Every path, whether or not this processor has it.
    pub const ALL: [Self; 5] = [
        Self::Portable,
        Self::Neon,
        Self::NeonDot,
        Self::Avx2,
        Self::Avx512,
    ];

    /// Whether this processor can run the path.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The best path that this processor has.
    pub fn best() -> Self {
        static BEST: OnceLock<CpuPath> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best = |best: Self, path: &Self| if path.available() { *path } else { best };
            Self::ALL.iter().fold(Self::Portable, best)
        })
    }

    /// The path in force on this thread: the one forced by [`with_path`], or the best.
    pub fn current() -> Self {
        FORCED.get().unwrap_or_else(Self::best)
    }
}

impl fmt::Display for CpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dotprod",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
        })
    }
}

thread_local! {
    static FORCED: Cell<Option<CpuPath>> = const { Cell::new(None) };
}

/// Runs `f` with every kernel that this thread calls on `path`; `None` if this processor lacks the path.
///
/// Kernels read the path once, on the calling thread, before they share work out.
pub fn with_path<R>(path: CpuPath, f: impl FnOnce() -> R) -> Option<R> {
    struct Restore(Option<CpuPath>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    if !path.available() {
        return None;
    }
    let _restore = Restore(FORCED.replace(Some(path)));
    Some(f())
}

/// Runs `f` on a thread of the pool that the kernels share (rayon's global pool).
///
/// A kernel called from outside the pool has to hand its work over and sleep until it is done, which costs more than
/// a small decode matmul. Call this once around a whole forward pass.
pub fn in_pool<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| f())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_path_is_available_and_can_be_overridden() {
        assert!(CpuPath::best().available());
        let inside = with_path(CpuPath::Portable, CpuPath::current);
        assert_eq!(inside, Some(CpuPath::Portable));
        assert_eq!(CpuPath::current(), CpuPath::best());
    }

    #[test]
    fn a_missing_path_is_refused() {
        for path in CpuPath::ALL {
            assert_eq!(with_path(path, || ()).is_some(), path.available(), "{path}");
        }
    }

    #[test]
    fn work_runs_on_the_pool() {
        assert!(in_pool(|| rayon::current_thread_index().is_some()));
    }
}
