//! [`Simd`] in plain Rust: eight lanes that any compiler turns into what its target has.

use half::f16;

use super::Simd;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;
type V = [f32; N];

#[inline(always)]
fn map(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn fold(v: V, f: impl Fn(f32, f32) -> f32) -> f32 {
    let quads = [f(v[0], v[4]), f(v[1], v[5]), f(v[2], v[6]), f(v[3], v[7])];
    f(f(quads[0], quads[2]), f(quads[1], quads[3]))
}

#[inline(always)]
unsafe fn load_with<T: Copy>(from: *const T, f: impl Fn(T) -> f32) -> V {
    let mut out = [0.0; N];
    for (i, o) in out.iter_mut().enumerate() {
        // SAFETY: the caller's pointer is valid for N elements.
        *o = f(unsafe { from.add(i).read_unaligned() });
    }
    out
}

impl Simd for Portable {
    type V = V;
    type Row = [V; 2];
    const N: usize = N;

    #[inline(always)]
    unsafe fn splat(value: f32) -> V {
        [value; N]
    }
    #[inline(always)]
    unsafe fn row_splat(value: f32) -> [V; 2] {
        [[value; N]; 2]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> V {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { load_with(from, |v| v) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: V) {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { to.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        // `f32::mul_add` would be a library call on targets without the instruction.
        map(map(a, b, |a, b| a * b), c, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn exp2_of_low_bits(v: V) -> V {
        v.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3f80_0000)))
    }
    #[inline(always)]
    unsafe fn zero_where_less(a: V, b: V, v: V) -> V {
        let mut out = v;
        for i in 0..N {
            if a[i] < b[i] {
                out[i] = 0.0;
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        fold(v, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn maximum(v: V) -> f32 {
        fold(v, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> V {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { load_with(from, |v| f16::from_bits(v).to_f32()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> V {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { load_with(from, |v| f32::from_bits(u32::from(v) << 16)) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> V {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { load_with(from, f32::from) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> V {
        // SAFETY: the caller's pointer is valid for N elements.
        unsafe { load_with(from, f32::from) }
    }
}
