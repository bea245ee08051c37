//! Reading candle tensors in place.

use candle_core::{DType, Device, Error, Layout, Result, Storage, Tensor};

use crate::Element;

/// Runs `$body` with the type name `$T` bound to the element type of `$dtype`.
macro_rules! for_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => candle_core::bail!(
                "this operation takes f32, f16 or bf16, got {other:?}; convert the tensor first"
            ),
        }
    };
}
pub(crate) use for_element;

/// Calls `f` with the whole storage of a CPU tensor and the layout that says where its elements lie.
pub(crate) fn with_storage<T: Element, R>(
    tensor: &Tensor,
    f: impl FnOnce(&[T], &Layout) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => f(cpu.as_slice::<T>()?, layout),
        _ => Err(Error::Msg(
            "a CPU kernel was given a tensor of another device".into(),
        )),
    }
}

/// Calls `f` with the elements of a CPU tensor in row-major order; they are copied only if they do not lie so.
pub(crate) fn with_slice<T: Element, R>(
    tensor: &Tensor,
    f: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    let tensor = tensor.contiguous()?;
    with_storage::<T, R>(&tensor, |data, layout| {
        let start = layout.start_offset();
        f(&data[start..start + layout.shape().elem_count()])
    })
}

/// A CPU tensor that takes `values` over without a copy.
pub(crate) fn from_values<T: Element>(
    values: Vec<T>,
    shape: impl Into<candle_core::Shape>,
) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Fails unless `other` has `dtype`.
pub(crate) fn check_dtype(what: &str, dtype: DType, other: &Tensor) -> Result<()> {
    if other.dtype() != dtype {
        candle_core::bail!(
            "{what} is {:?} where {dtype:?} is needed; convert it first",
            other.dtype()
        );
    }
    Ok(())
}
