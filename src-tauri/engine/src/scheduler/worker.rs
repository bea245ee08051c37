//! The engine thread's loop.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, TryRecvError},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    engine::{Command, EngineOptions, ModelState, Shared},
    loaded::{LoadedModels, ModelInfo, ModelSpec},
    prompt::Resources,
    recovery::Recovery,
    sequence::{Phase, Sequence},
    stores::Stores,
};
use crate::{
    error::EngineError,
    request::{GenerationEvent, GenerationRequest},
    specprefill::DraftState,
};

/// Prompts that wait for idle time, at most.
const MAX_RECOVERIES: usize = 4;

/// A request in the queue.
#[derive(Debug)]
struct Waiting {
    request: Box<GenerationRequest>,
    events: mpsc::UnboundedSender<GenerationEvent>,
}

/// The engine thread's state.
pub(super) struct Worker {
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    options: EngineOptions,
    models: LoadedModels,
    waiting: VecDeque<Waiting>,
    running: Vec<Sequence>,
    /// Prefix caches and sparse sessions.
    stores: Stores,
    /// Prompts to read in idle time.
    recoveries: VecDeque<Recovery>,
    /// Models to unload once their last request is done.
    unloading: Vec<String>,
    /// Index in `running` after the sequence that prefilled last.
    next_prefill: usize,
    /// How long decoding may still go on before the next prefill chunk: as long as the last chunk took.
    decode_credit: Duration,
}

impl Worker {
    pub(super) fn new(
        inbox: Receiver<Command>,
        shared: Arc<Shared>,
        options: EngineOptions,
    ) -> Self {
        Self {
            models: LoadedModels::new(
                options.device.clone(),
                options.max_loaded_models.max(1),
                options.state_folder.clone(),
            ),
            stores: Stores::new(options.prefix_cache_bytes),
            recoveries: VecDeque::new(),
            inbox,
            shared,
            options,
            waiting: VecDeque::new(),
            running: Vec::new(),
            unloading: Vec::new(),
            next_prefill: 0,
            decode_credit: Duration::ZERO,
        }
    }

    /// Runs until the handle is dropped or says stop.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.drop_cancelled();
            self.admit();
            self.decode_round();
            self.prefill_step();
            self.retire();
            self.recovery_step();
        }
    }

    /// Takes all commands; blocks while there is nothing to do. False: stop.
    fn receive(&mut self) -> bool {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let command = if idle && self.recoveries.is_empty() {
                match self.inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                }
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            };
            match command {
                Command::Generate { request, events } => {
                    self.waiting.push_back(Waiting { request, events })
                }
                Command::Load { spec, reply } => {
                    let loaded = self.ensure_loaded(&spec);
                    // The asker may have given up meanwhile.
                    let _ = reply.send(loaded);
                }
                Command::Unload { key, reply } => {
                    let loaded = self.models.get(&key).is_some();
                    if loaded {
                        self.unloading.push(key);
                        self.unload_idle();
                    }
                    let _ = reply.send(loaded);
                }
                Command::Stop => return false,
            }
        }
    }

    fn ensure_loaded(&mut self, spec: &ModelSpec) -> Result<Arc<ModelInfo>, EngineError> {
        self.unloading.retain(|key| *key != spec.key);
        if self.models.get(&spec.key).is_none() {
            self.shared.set_model(&spec.key, Some(ModelState::Loading));
        }
        let before: Vec<String> = self.models.keys().cloned().collect();
        let running = &self.running;
        let models = &mut self.models;
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            models.ensure(spec, |key| {
                running.iter().any(|sequence| sequence.model_key() == key)
            })
        }))
        .unwrap_or_else(|_| {
            Err(EngineError::Load(
                "an internal error; the log has the details".into(),
            ))
        });
        self.shared.set_loaded(self.models.keys());
        self.forget_unloaded(&before);
        if let Err(error) = &loaded {
            tracing::warn!(model = spec.key, %error, "loading failed");
        }
        loaded
    }

    fn unload_idle(&mut self) {
        if self.unloading.is_empty() {
            return;
        }
        let loaded: Vec<String> = self.models.keys().cloned().collect();
        let running = &self.running;
        let models = &mut self.models;
        let before = self.unloading.len();
        self.unloading.retain(|key| {
            let in_use = running.iter().any(|sequence| sequence.model_key() == key);
            if !in_use {
                models.remove(key);
            }
            in_use
        });
        if self.unloading.len() != before {
            self.shared.set_loaded(self.models.keys());
            self.forget_unloaded(&loaded);
        }
    }

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| !waiting.events.is_closed());
        self.shared
            .waiting
            .fetch_sub(before - self.waiting.len(), Ordering::SeqCst);
        let cancelled = |sequence: &mut Sequence| sequence.is_cancelled();
        let gone: Vec<Sequence> = self.running.extract_if(.., cancelled).collect();
        for sequence in gone {
            tracing::debug!(
                model = sequence.model_key(),
                "request cancelled: nobody listens any more"
            );
            // What was computed may serve the next attempt.
            self.retire_one(sequence);
        }
    }

    /// Admits waiting requests, in order, while there is room.
    fn admit(&mut self) {
        while self.running.len() < self.options.max_running
            && let Some(Waiting { request, events }) = self.waiting.pop_front()
        {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
            let sequence = self.ensure_loaded(&request.model).and_then(|info| {
                let loaded = self.models.get(&info.key).ok_or(EngineError::NotLoaded)?;
                Sequence::new(*request, events.clone(), info, loaded.model.as_ref())
            });
            match sequence {
                Ok(sequence) => {
                    let _ = events.send(GenerationEvent::Admitted);
                    self.running.push(sequence);
                }
                Err(error) => {
                    let _ = events.send(GenerationEvent::Failed(error));
                }
            }
        }
        self.shared
            .running
            .store(self.running.len(), Ordering::Relaxed);
    }

    /// One token for every decoding request.
    fn decode_round(&mut self) {
        let started = Instant::now();
        for index in 0..self.running.len() {
            if matches!(self.running[index].phase(), Phase::Decode { .. })
                && !self.running[index].is_cancelled()
            {
                self.step(index);
            }
        }
        self.decode_credit = self.decode_credit.saturating_sub(started.elapsed());
    }

    /// One chunk of one prompt, taking turns; waits while decoding requests still have credit, so that both get half of the time.
    fn prefill_step(&mut self) {
        let decoding = self
            .running
            .iter()
            .any(|sequence| matches!(sequence.phase(), Phase::Decode { .. }));
        if decoding && !self.decode_credit.is_zero() {
            return;
        }
        let count = self.running.len();
        let turn = (0..count)
            .map(|offset| (self.next_prefill + offset) % count)
            .find(|index| self.running[*index].phase() == Phase::Prefill);
        if let Some(index) = turn {
            let started = Instant::now();
            self.step(index);
            self.decode_credit = started.elapsed();
            self.next_prefill = index + 1;
        }
    }

    /// One step of one request; an error or a panic ends that request alone.
    fn step(&mut self, index: usize) {
        let Self {
            running,
            models,
            stores,
            options,
            ..
        } = self;
        let contended = running.len() > 1;
        let sequence = &mut running[index];
        let Some(loaded) = models.get_mut(sequence.model_key()) else {
            sequence.fail(EngineError::NotLoaded);
            return;
        };
        // Inside the kernels' thread pool, so that no operation has to hand its work over and wait.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            headstart_kernels::in_pool(|| {
                let draft = sequence.draft_spec();
                if sequence.is_unplanned() {
                    sequence.plan(stores, || match &draft {
                        Some(spec) => loaded.ensure_draft(spec, &options.device),
                        None => DraftState::Missing,
                    });
                    sequence.plan_mtp(loaded.model.as_ref(), &mut loaded.mtp);
                }
                sequence.step(&mut Resources {
                    model: loaded.model.as_ref(),
                    draft: draft.as_ref().and_then(|spec| loaded.draft(spec)),
                    stores,
                    chunk: options.prefill_chunk,
                    contended,
                })
            })
        }));
        let error = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => EngineError::Compute("an internal error; the log has the details".into()),
        };
        tracing::error!(model = sequence.model_key(), %error, "request failed");
        sequence.fail(error);
    }

    /// Reads a part of a prompt that was answered sparsely, while there is nothing else to do.
    fn recovery_step(&mut self) {
        if !self.running.is_empty() || !self.waiting.is_empty() {
            return;
        }
        let Some(mut recovery) = self.recoveries.pop_front() else {
            return;
        };
        let Some(loaded) = self.models.get(recovery.model()) else {
            return;
        };
        let stores = &mut self.stores;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            headstart_kernels::in_pool(|| recovery.step(loaded.model.as_ref(), stores))
        }));
        match outcome {
            Ok(Ok(false)) => self.recoveries.push_front(recovery),
            Ok(Ok(true)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "dense recovery failed"),
            Err(_) => tracing::error!("dense recovery panicked; the log has the details"),
        }
    }

    /// Lets go of finished requests.
    fn retire(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].phase() != Phase::Done {
                index += 1;
                continue;
            }
            let sequence = self.running.remove(index);
            let millis = sequence.age().as_millis() as u64;
            let typical = self.shared.typical_millis.load(Ordering::Relaxed);
            let smoothed = if typical == 0 {
                millis
            } else {
                (typical * 7 + millis) / 8
            };
            self.shared
                .typical_millis
                .store(smoothed, Ordering::Relaxed);
            self.retire_one(sequence);
        }
        self.shared
            .running
            .store(self.running.len(), Ordering::Relaxed);
        self.unload_idle();
    }

    /// Keeps what a request leaves behind.
    fn retire_one(&mut self, sequence: Sequence) {
        if let Some(loaded) = self.models.get_mut(sequence.model_key()) {
            sequence.teach(&mut loaded.mtp);
        }
        if let Some(mut recovery) = sequence.leave(&mut self.stores) {
            for old in std::mem::take(&mut self.recoveries) {
                if old.is_covered_by(&recovery) {
                    recovery.take_over(old);
                } else {
                    self.recoveries.push_back(old);
                }
            }
            self.recoveries.push_back(recovery);
            while self.recoveries.len() > MAX_RECOVERIES {
                self.recoveries.pop_front();
            }
        }
    }

    /// Forgets what belongs to models that are gone.
    fn forget_unloaded(&mut self, before: &[String]) {
        for key in before {
            if self.models.get(key).is_none() {
                self.stores.forget(key);
            }
        }
        let models = &self.models;
        self.recoveries
            .retain(|recovery| models.get(recovery.model()).is_some());
    }
}
