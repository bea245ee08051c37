//! `headstart quantize SRC DST`.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::Args;
use headstart_engine::{
    quantize::{Keep, QuantizeOptions, quantize as write_quantized},
    weights::AffineFormat,
};

use super::{Failure, human_bytes};

#[derive(Debug, Args)]
pub(super) struct QuantizeArgs {
    /// Folder of the unquantized checkpoint (config.json and *.safetensors).
    source: PathBuf,
    /// Folder to write; it must not exist yet.
    target: PathBuf,
    /// Bits of a weight.
    #[arg(long, default_value_t = 4, value_parser = bits)]
    bits: u32,
    /// Weights that share a scale and a bias.
    #[arg(long, default_value_t = 64, value_parser = group)]
    group: usize,
    /// Other bits for modules whose path matches, for example "*.embed_tokens=8"; "none" leaves them unquantized (repeatable, the
    /// first match holds).
    #[arg(long, value_name = "PATTERN=BITS", value_parser = keep)]
    keep: Vec<Keep>,
}

fn bits(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bits @ (2 | 3 | 4 | 5 | 6 | 8)) => Ok(bits),
        _ => Err("choose 2, 3, 4, 5, 6 or 8".into()),
    }
}

fn group(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(group @ (32 | 64 | 128)) => Ok(group),
        _ => Err("choose 32, 64 or 128".into()),
    }
}

fn keep(text: &str) -> Result<Keep, String> {
    let (pattern, value) = text
        .rsplit_once('=')
        .ok_or_else(|| "write it as PATTERN=BITS".to_string())?;
    Ok(Keep {
        pattern: pattern.to_string(),
        bits: match value {
            "none" => None,
            value => Some(bits(value)?),
        },
    })
}

/// Writes an MLX checkpoint with affine quantization.
pub(super) fn quantize(args: QuantizeArgs) -> Result<(), Failure> {
    let options = QuantizeOptions {
        format: AffineFormat {
            bits: args.bits,
            group: args.group,
        },
        keep: args.keep,
    };
    let show = std::io::stderr().is_terminal();
    let mut shown = None;
    let mut progress = |done: f64| {
        let percent = (done * 100.0) as u32;
        if show && shown != Some(percent) {
            shown = Some(percent);
            eprint!("\r{percent} %");
            // A progress line that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    };
    let report = write_quantized(&args.source, &args.target, &options, &mut progress)?;
    if show {
        eprintln!();
    }
    println!(
        "{}: {} became {}; {} modules quantized, {} tensors as they were{}",
        args.target.display(),
        human_bytes(report.bytes.0),
        human_bytes(report.bytes.1),
        report.quantized,
        report.copied,
        if report.dropped > 0 {
            format!(", {} of the image encoder left out", report.dropped)
        } else {
            String::new()
        }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_read() {
        assert_eq!(
            keep("*.embed_tokens=8").unwrap(),
            Keep {
                pattern: "*.embed_tokens".into(),
                bits: Some(8)
            }
        );
        assert_eq!(keep("a=none").unwrap().bits, None);
        assert!(keep("a").is_err() && keep("a=7").is_err());
    }
}
