//! What loading a model costs, measured in a fresh process of the real binary.

use std::time::Instant;

use headstart_tests::{
    locate::bundled,
    server::{Server, Setup},
};
use serde_json::json;

/// `VmHWM`, the most memory that a process ever had resident; `None` where the system does not say.
fn peak_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Weights are used as the file has them or packed once, never widened or held twice.
#[test]
fn loading_peaks_near_the_size_of_the_file() {
    let folder = bundled("nano");
    let file = std::fs::metadata(folder.join("model.safetensors"))
        .unwrap()
        .len();
    let server = Server::start(&Setup::new(folder.parent().unwrap()));
    let Some(before) = peak_bytes(server.id()) else {
        println!("SKIPPED: this system does not say how much memory a process had");
        return;
    };
    let start = Instant::now();
    let reply = server
        .client()
        .complete(&json!({"model": "nano", "prompt": "Hello", "max_tokens": 1}));
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(reply["usage"]["completion_tokens"], 1);
    let peak = peak_bytes(server.id()).unwrap();
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "loaded {:.1} MB and answered in {seconds:.2} s: {:.1} MB before, {:.1} MB at the peak",
        megabytes(file),
        megabytes(before),
        megabytes(peak)
    );
    let limit = 1.3 * file as f64 + 100e6;
    assert!((peak as f64) < limit, "{peak} bytes, allowed {limit:.0}");
}
