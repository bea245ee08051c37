//! What a forward pass of several rows costs in units of a one-token pass: what speculative decoding has to win back.
//!
//! `cargo run --release -p headstart-engine --example verify_cost -- FOLDER [CACHED_TOKENS] [ROUNDS] [ROWS]`

use std::{error::Error, path::Path, time::Instant};

use candle_core::Device;
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows, Model},
    mtp::MtpHead,
    positions::Positions,
};
use headstart_kernels::{EXACT_ROWS, in_pool};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("which model folder?")?;
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (cached, rounds, only) = (number(256)?, number(60)?, number(0)?);
    let widths = match only {
        0 => (1..=EXACT_ROWS).collect(),
        rows => vec![rows.min(EXACT_ROWS)],
    };
    let model =
        Checkpoint::open(Path::new(&folder))?.load(&Device::Cpu, &LoadOptions::default())?;
    in_pool(|| measure(model.as_ref(), cached, rounds, &widths)).map_err(Into::into)
}

fn measure(
    model: &dyn Model,
    cached: usize,
    rounds: usize,
    widths: &[usize],
) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let ids: Vec<u32> = (0..(cached + EXACT_ROWS) as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % model.vocab_size() as u32)
        .collect();
    let mut cache = model.new_cache();
    let prompt = Positions::contiguous(0, cached);
    let input = ForwardInput::new(&ids[..cached], &prompt, LogitRows::None).with_hidden();
    let hidden = model
        .forward(input, &mut cache)
        .map_err(|e| failed(&e))?
        .hidden;
    // Widths take turns, so that other load on the machine meets all of them alike.
    let mut times = vec![Vec::new(); EXACT_ROWS + 1];
    for _ in 0..rounds {
        for &rows in widths {
            let positions = Positions::contiguous(cached as u32, rows);
            let input = ForwardInput::new(&ids[cached..cached + rows], &positions, LogitRows::All)
                .with_hidden()
                .replayable();
            let start = Instant::now();
            model.forward(input, &mut cache).map_err(|e| failed(&e))?;
            times[rows].push(start.elapsed().as_secs_f64() * 1e3);
            cache.rollback(0).map_err(|e| failed(&e))?;
        }
    }
    let report = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[0], times[times.len() / 2])
    };
    let one = report(&mut times[widths[0]]);
    for &rows in widths {
        let times = &mut times[rows];
        let (least, median) = report(times);
        println!(
            "{rows} rows: least {least:.2} ms ({:.2} of the first), median {median:.2} ms ({:.2} of the first)",
            least / one.0,
            median / one.1
        );
    }
    if let (Some(head), Some(hidden)) = (model.mtp().head(), hidden) {
        drafts(model, head, &hidden, &ids, rounds).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// The parts of a draft step.
fn drafts(
    model: &dyn Model,
    head: &MtpHead,
    hidden: &candle_core::Tensor,
    ids: &[u32],
    rounds: usize,
) -> Result<(), headstart_engine::error::EngineError> {
    let pairs = hidden.dims()[0];
    let mut cache = head.new_cache();
    let next = &ids[1..=pairs];
    let start = Instant::now();
    let mut last = head.fold(hidden, next, &Positions::contiguous(1, pairs), &mut cache)?;
    println!(
        "folding {pairs} pairs: {:.2} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    let some: Vec<u32> = (0..model.vocab_size() as u32 / 8).collect();
    let start = Instant::now();
    let draft = head.subset(&some)?;
    println!(
        "gathering {} rows: {:.2} ms",
        some.len(),
        start.elapsed().as_secs_f64() * 1e3
    );
    let mut least = [f64::INFINITY; 3];
    for round in 0..rounds {
        let mut time = |part: usize, start: Instant| {
            least[part] = least[part].min(start.elapsed().as_secs_f64() * 1e3);
        };
        let start = Instant::now();
        let position = Positions::contiguous((pairs + 1 + round) as u32, 1);
        last = head.fold(&last, &[7], &position, &mut cache)?;
        time(0, start);
        let start = Instant::now();
        head.logits(&last)?;
        time(1, start);
        let start = Instant::now();
        draft.logits(&last)?;
        time(2, start);
    }
    let [fold, full, part] = least;
    println!("draft step: head {fold:.2} ms, logits {full:.2} ms, of an eighth {part:.2} ms");
    Ok(())
}
