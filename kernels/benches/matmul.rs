//! Quantized matmul at the shapes of SmolLM2-135M: prefill in multiply-adds a second (Gelem/s reads as GMAC/s), decode
//! and verify widths in bytes of weights a second. `cargo bench --bench matmul -- Q4_1`

use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headstart_kernels::{CpuPath, GgufQuant, PackedMatrix, in_pool, with_path};

/// Output and input features: fused qkv, attention output, fused gate and up, down.
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];

/// Weights of random codes and small scales: the time does not depend on the values, as long as they are finite.
fn matrix(quant: GgufQuant, n: usize, k: usize) -> Option<PackedMatrix> {
    let bytes = n * (k / quant.block_len()) * quant.block_bytes();
    let bytes: Vec<u8> = (0..bytes as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3b)
        .collect();
    PackedMatrix::from_gguf(quant, &bytes, n, k).ok()
}

fn values(n: usize) -> Vec<f32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn one_layer(c: &mut Criterion, path: CpuPath, quant: GgufQuant) {
    let layer: Vec<_> = SHAPES
        .iter()
        .filter_map(|&(n, k)| matrix(quant, n, k))
        .collect();
    let macs: usize = layer.iter().map(|w| w.n() * w.k()).sum();
    // As many copies as do not fit in the caches, so that decoding reads memory.
    let copies = if layer.is_empty() { 0 } else { 40 };
    let layers: Vec<_> = (0..copies)
        .map(|_| {
            SHAPES
                .iter()
                .filter_map(|&(n, k)| matrix(quant, n, k))
                .collect::<Vec<_>>()
        })
        .collect();
    let mut group = c.benchmark_group(format!("{path}/{quant:?}"));
    for m in [1, 2, 4, 8, 64, 512] {
        let x = values(m * 1536);
        let mut out = vec![0f32; m * 3072];
        let bytes: usize = layer.iter().map(PackedMatrix::bytes).sum();
        group.throughput(if m <= 8 {
            Throughput::Bytes(bytes as u64)
        } else {
            Throughput::Elements((macs * m) as u64)
        });
        group.bench_with_input(BenchmarkId::new("rows", m), &m, |b, &m| {
            b.iter_custom(|iterations| {
                let run = || {
                    let start = Instant::now();
                    for i in 0..iterations as usize {
                        for w in &layers[i % copies.max(1)] {
                            let done = w.matmul(&x[..m * w.k()], m, &mut out[..m * w.n()]);
                            assert!(done.is_ok());
                        }
                    }
                    start.elapsed()
                };
                in_pool(|| with_path(path, run)).unwrap_or_default()
            });
        });
    }
}

fn bench(c: &mut Criterion) {
    for path in CpuPath::ALL.into_iter().rev().filter(|p| p.available()) {
        for quant in GgufQuant::ALL {
            // K-quants need rows of whole 256: of these shapes only the last has them.
            one_layer(c, path, quant);
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = bench
}
criterion_main!(benches);
