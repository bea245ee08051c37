//! Where tensors live: CPU, Metal or CUDA.

use std::{fmt, str::FromStr};

use candle_core::{DType, Device};

/// A user's choice of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// Metal on a Mac, CUDA where compiled in and present, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// Apple's GPU.
    Metal,
    /// An NVIDIA GPU.
    Cuda,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "metal" => Ok(Self::Metal),
            "cuda" => Ok(Self::Cuda),
            _ => Err(format!(
                "unknown device \"{text}\"; choose auto, cpu, metal or cuda"
            )),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        })
    }
}

impl DeviceChoice {
    /// Opens the device.
    ///
    /// # Errors
    /// A sentence for the user when the chosen device is not compiled in or not present. `Auto` never fails: it ends at the CPU.
    pub fn open(self) -> Result<Device, String> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Metal => Device::new_metal(0).map_err(|e| {
                format!(
                    "Metal is not available here ({}); use --device cpu",
                    crate::error::short_message(&e)
                )
            }),
            Self::Cuda => Device::new_cuda(0).map_err(|e| {
                format!(
                    "CUDA is not available here ({}); use --device cpu",
                    crate::error::short_message(&e)
                )
            }),
            Self::Auto => {
                if candle_core::utils::metal_is_available()
                    && let Ok(device) = Device::new_metal(0)
                {
                    return Ok(device);
                }
                if candle_core::utils::cuda_is_available()
                    && let Ok(device) = Device::new_cuda(0)
                {
                    return Ok(device);
                }
                Ok(Device::Cpu)
            }
        }
    }
}

/// The dtype of activations and caches on `device` for a checkpoint stored in `stored`.
///
/// GPUs compute in the checkpoint's own 16-bit type. CPUs here have no fast 16-bit arithmetic in the tensor library: it would widen
/// and narrow at every step, so everything runs in f32.
pub fn compute_dtype(device: &Device, stored: DType) -> DType {
    match (device, stored) {
        (Device::Cpu, _) => DType::F32,
        (_, DType::BF16 | DType::F16) => stored,
        _ => DType::F32,
    }
}

/// The device's name for people: `cpu`, `metal`, `cuda`.
pub fn device_name(device: &Device) -> &'static str {
    match device {
        Device::Cpu => "cpu",
        Device::Metal(_) => "metal",
        Device::Cuda(_) => "cuda",
    }
}
