//! Two fake models, their KV caches in full view, and an engine over them.
//!
//! Every slot that an allocator hands out is recorded, so that a test can read back what each sequence's slots hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use specquant_core::{
    Batch, Event, EventKind, Kv, Model, ModelInfo, Request, Reserve, Sampling, Scores, SeqId, SlotCopy,
};
use specquant_kv::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage, allocator};

use crate::fake::{Fake, Letters, Rule};
use crate::{DraftModel, Engine, NoDraft, Output, Parts, Policy, Proposer, Virtual};

/// The target of most tests.
pub(super) const TARGET: Rule = Rule::Random { seed: 11, spread: 8.0 };

/// A draft model that is right now and then.
pub(super) const DRAFT: Rule = Rule::Mixed { target: (11, 8.0), noise: 0.4 };

/// The allocators that every exactness check goes through.
pub(super) const ALLOCATORS: [Kv; 8] = [
    Kv::Contiguous,
    Kv::Buddy { reserve: Reserve::Max },
    Kv::Buddy { reserve: Reserve::Oracle },
    Kv::Paged { block: 1 },
    Kv::Paged { block: 4 },
    Kv::Paged { block: 16 },
    Kv::Prefix { block: 1 },
    Kv::Prefix { block: 4 },
];

/// What a machine is built from.
#[derive(Clone)]
pub(super) struct Rig {
    pub(super) target: Rule,
    /// `None` decodes plainly.
    pub(super) draft: Option<Rule>,
    pub(super) vocab: usize,
    /// Ids of the draft model; its first ones are the target's.
    pub(super) draft_vocab: usize,
    pub(super) context: usize,
    pub(super) draft_context: usize,
    pub(super) slots: usize,
    pub(super) draft_slots: usize,
    pub(super) kv: Kv,
    pub(super) policy: Policy,
    /// Nanoseconds of one forward of the target and of the draft model.
    pub(super) cost: (u64, u64),
    /// Plants a mistake in the target's allocator.
    pub(super) wrap_kv: fn(Box<dyn Allocator>) -> Box<dyn Allocator>,
    /// Plants a mistake in the proposer.
    pub(super) wrap_draft: for<'a> fn(DraftModel<'a>) -> Box<dyn Proposer + 'a>,
}

/// What a finished run leaves.
pub(super) struct Ran {
    /// By request.
    pub(super) outputs: Vec<Output>,
    pub(super) events: Vec<Event>,
}

/// What a test can look at while an engine runs.
pub(super) struct Machine {
    pub(super) target: Shared,
    pub(super) draft: Shared,
    pub(super) kv: Watched,
    pub(super) draft_kv: Watched,
    pub(super) clock: Arc<Virtual>,
}

/// A fake model that the test can look into, and that takes time to run.
#[derive(Clone)]
pub(super) struct Shared {
    info: ModelInfo,
    fake: Arc<Mutex<Fake>>,
    clock: Arc<Virtual>,
    cost: u64,
}

/// The view of an allocator from outside: the engine holds the allocator itself.
#[derive(Clone, Default)]
pub(super) struct Watched(Arc<Mutex<Ledger>>);

/// What an allocator has handed out.
#[derive(Default)]
pub(super) struct Ledger {
    /// The slots of each open sequence.
    pub(super) slots: BTreeMap<SeqId, Vec<u32>>,
    /// The committed ids of each open sequence.
    pub(super) committed: BTreeMap<SeqId, Vec<u32>>,
    /// Lengths before and after each `keep` that gave slots back.
    pub(super) rollbacks: Vec<(usize, usize)>,
    pub(super) usage: Usage,
}

/// The recording allocator.
struct Recorder {
    inner: Box<dyn Allocator>,
    ledger: Watched,
}

/// A greedy request that generates exactly `max` tokens unless the context ends first.
pub(super) fn ask(id: u64, prompt: &[u32], max_new_tokens: usize) -> Request {
    let (prompt, stop, sampling) = (prompt.to_vec(), Vec::new(), Sampling::GREEDY);
    Request { id, arrival: 0, prompt, max_new_tokens, ignore_eos: true, stop, sampling, seed: 7 }
}

/// Requests with prompts of different lengths and contents.
pub(super) fn asks(n: u64, max_new_tokens: usize) -> Vec<Request> {
    let prompt = |id: u64| (0..1 + 5 * id % 13).map(|i| ((3 * id + 2 * i) % 26 + 1) as u32).collect::<Vec<_>>();
    (0..n).map(|id| ask(id, &prompt(id), max_new_tokens)).collect()
}

/// A temperature and nothing else.
pub(super) fn heat(temperature: f32) -> Sampling {
    Sampling { temperature, ..Sampling::GREEDY }
}

impl Rig {
    /// Speculation `k` tokens deep with the usual models and room for everything.
    pub(super) fn new(k: usize) -> Rig {
        Rig {
            target: TARGET,
            draft: Some(DRAFT),
            vocab: 27,
            draft_vocab: 27,
            context: 256,
            draft_context: 256,
            slots: 4096,
            draft_slots: 4096,
            kv: Kv::Paged { block: 16 },
            policy: Policy { limit: 8, wait: None, chunk: 64, depth: k },
            cost: (0, 0),
            wrap_kv: |kv| kv,
            wrap_draft: |draft| Box::new(draft),
        }
    }

    /// The same machine without speculation.
    pub(super) fn plain(&self) -> Rig {
        let policy = Policy { depth: 0, ..self.policy };
        Rig { draft: None, policy, wrap_kv: |kv| kv, ..self.clone() }
    }

    /// Builds the machine and lends it, with an engine on it, to `body`.
    pub(super) fn start<R>(&self, body: impl FnOnce(&mut Engine<'_>, &Machine) -> R) -> R {
        let clock = Arc::new(Virtual::default());
        let shared = |rule: Rule, vocab, context, slots, cost| {
            let fake = Fake::new(rule, vocab, context, slots);
            Shared { info: fake.info().clone(), fake: Arc::new(Mutex::new(fake)), clock: clock.clone(), cost }
        };
        let machine = Machine {
            target: shared(self.target.clone(), self.vocab, self.context, self.slots, self.cost.0),
            draft: shared(
                self.draft.clone().unwrap_or(DRAFT),
                self.draft_vocab,
                self.draft_context,
                self.draft_slots,
                self.cost.1,
            ),
            kv: Watched::default(),
            draft_kv: Watched::default(),
            clock: clock.clone(),
        };
        let (mut target, mut draft) = (machine.target.clone(), machine.draft.clone());
        let kv = machine.kv.record((self.wrap_kv)(allocator(self.kv, self.slots)));
        let draft_kv = machine.draft_kv.record(allocator(self.kv, self.draft_slots));
        let proposer: Box<dyn Proposer + '_> = match self.draft {
            Some(_) => (self.wrap_draft)(DraftModel::new(&mut draft, draft_kv)),
            None => Box::new(NoDraft),
        };
        let parts = Parts { target: &mut target, kv, proposer, text: &Letters, clock: &*machine.clock };
        body(&mut Engine::new(parts, self.policy), &machine)
    }

    /// Submits the requests at once and runs them to their end.
    pub(super) fn run(&self, requests: &[Request]) -> Result<Ran> {
        self.start(|engine, _| {
            requests.iter().for_each(|request| engine.submit(request.clone()));
            finish(engine)
        })
    }

    /// The only output of a run of one request.
    pub(super) fn alone(&self, request: &Request) -> Output {
        self.run(std::slice::from_ref(request)).unwrap().outputs.remove(0)
    }
}

/// Steps until nothing is left.
pub(super) fn finish(engine: &mut Engine<'_>) -> Result<Ran> {
    let mut outputs = Vec::new();
    while !engine.is_idle() {
        outputs.extend(engine.step()?);
    }
    outputs.sort_by_key(|output| output.request);
    Ok(Ran { outputs, events: engine.take_events() })
}

impl Ran {
    /// Tokens, drafted and accepted of each emission of one request, the one of its prefill first.
    pub(super) fn emissions(&self, of: u64) -> Vec<(usize, usize, usize)> {
        let emission = |event: &Event| match event.kind {
            EventKind::Tokens { request, n, drafted, accepted, .. } if request == of => Some((n, drafted, accepted)),
            _ => None,
        };
        self.events.iter().filter_map(emission).collect()
    }

    /// How many events are of this kind.
    pub(super) fn count(&self, kind: impl Fn(&EventKind) -> bool) -> usize {
        self.events.iter().filter(|event| kind(&event.kind)).count()
    }

    /// Draft tokens of all requests: drafted, accepted.
    pub(super) fn drafts(&self) -> (usize, usize) {
        self.events.iter().fold((0, 0), |sum, event| match event.kind {
            EventKind::Tokens { drafted, accepted, .. } => (sum.0 + drafted, sum.1 + accepted),
            _ => sum,
        })
    }
}

impl Shared {
    pub(super) fn fake(&self) -> MutexGuard<'_, Fake> {
        self.fake.lock().unwrap()
    }
}

impl Model for Shared {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        self.clock.advance(self.cost);
        self.fake().forward(batch)
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        self.fake().copy_kv(copies)
    }
}

impl Watched {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }

    /// Slots that no other sequence could take, committed ones included.
    pub(super) fn taken(&self) -> usize {
        let usage = self.ledger().usage;
        usage.live + usage.reserved
    }

    fn record(&self, inner: Box<dyn Allocator>) -> Box<dyn Allocator> {
        Box::new(Recorder { inner, ledger: self.clone() })
    }
}

impl Recorder {
    /// Brings the ledger's usage up to date; it is read between requests only, and a sum over all sequences.
    fn note_usage(&self) {
        self.ledger.ledger().usage = self.inner.usage();
    }
}

impl Allocator for Recorder {
    fn open(&mut self, seq: SeqId, prompt: &[u32], limit: Limit) -> Result<Grant, Full> {
        let grant = self.inner.open(seq, prompt, limit)?;
        self.ledger.ledger().slots.insert(seq, grant.slots.clone());
        self.ledger.ledger().committed.insert(seq, prompt[..grant.slots.len()].to_vec());
        self.note_usage();
        Ok(grant)
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let grant = self.inner.extend(seq, n)?;
        self.ledger.ledger().slots.get_mut(&seq).unwrap().extend(&grant.slots);
        Ok(grant)
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved> {
        let all = self.inner.commit(seq, ids);
        let mut ledger = self.ledger.ledger();
        ledger.committed.get_mut(&seq).unwrap().extend(ids);
        let slots = ledger.slots.get_mut(&seq).unwrap();
        all.iter().for_each(|moved| slots[moved.at] = moved.slot);
        all
    }

    fn keep(&mut self, seq: SeqId, keep: Keep) -> Vec<SlotCopy> {
        let copies = self.inner.keep(seq, keep);
        let Keep::Len(len) = keep;
        let mut ledger = self.ledger.ledger();
        let slots = ledger.slots.get_mut(&seq).unwrap();
        let before = slots.len();
        slots.truncate(len);
        if before > len {
            ledger.rollbacks.push((before, len));
        }
        copies
    }

    fn free(&mut self, seq: SeqId) {
        self.inner.free(seq);
        self.ledger.ledger().slots.remove(&seq);
        self.ledger.ledger().committed.remove(&seq);
        self.note_usage();
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn largest(&self) -> usize {
        self.inner.largest()
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.inner.holding(seq)
    }
}
