//! A plain Llama in f64, written from the paper and independent of the crate, against the decoder on tiny checkpoints.

use safetensors::Dtype;
use specquant_core::{KvDtype, WeightFormat, Work};
use specquant_model::ModelFiles;

use crate::runs::{in_chunks, loaded, max_diff};
use crate::tiny::{EPS, HEADS, HIDDEN, INNER, LAYERS, THETA, TINY, Tensors, Tiny, VOCAB, model, round, tokens};

type Rows = Vec<Vec<f64>>;

struct Reference {
    tiny: Tiny,
    kv_dtype: Dtype,
    tensors: Tensors,
}

impl Reference {
    /// The weights of `tiny` with its matrices rounded to `format`; embedding and norms stay as stored.
    fn new(tiny: Tiny, format: WeightFormat, kv_dtype: KvDtype) -> Reference {
        let kv_dtype = match kv_dtype {
            KvDtype::F32 => Dtype::F32,
            KvDtype::F16 => Dtype::F16,
        };
        let dtype = match format {
            WeightFormat::F32 => Dtype::F32,
            WeightFormat::F16 => Dtype::F16,
            WeightFormat::Bf16 => Dtype::BF16,
            _ => panic!("the reference has floats only"),
        };
        let mut tensors = tiny.tensors();
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.entry("lm_head.weight".to_string()).or_insert_with(|| embedding.clone());
        for (shape, elements) in tensors.values_mut().filter(|(shape, _)| shape.len() == 2) {
            assert_eq!(shape.iter().product::<usize>(), elements.len());
            elements.iter_mut().for_each(|x| *x = round(dtype, *x));
        }
        tensors.insert("model.embed_tokens.weight".to_string(), embedding);
        Reference { tiny, kv_dtype, tensors }
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let (shape, w) = &self.tensors[&format!("{name}.weight")];
        let (outputs, inputs) = (shape[0], shape[1]);
        let row = |x: &Vec<f64>| (0..outputs).map(|o| (0..inputs).map(|i| x[i] * w[o * inputs + i]).sum()).collect();
        x.iter().map(row).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let w = &self.tensors[&format!("{name}.weight")].1;
        let row = |x: &Vec<f64>| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt();
            x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
        };
        x.iter().map(row).collect()
    }

    /// Turns each head of each row to its position.
    fn rope(&self, mut x: Rows) -> Rows {
        let (dim, half) = (self.tiny.head_dim, self.tiny.head_dim / 2);
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(dim) {
                for i in 0..half {
                    let angle = position as f64 * THETA.powf(-2.0 * i as f64 / dim as f64);
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + half] = b * angle.cos() + a * angle.sin();
                }
            }
        }
        x
    }

    fn attention(&self, layer: usize, x: &Rows) -> Rows {
        let dim = self.tiny.head_dim;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}_proj");
        let (q, mut k) = (self.rope(self.linear(&name("q"), x)), self.rope(self.linear(&name("k"), x)));
        let mut v = self.linear(&name("v"), x);
        k.iter_mut().chain(&mut v).flatten().for_each(|x| *x = round(self.kv_dtype, *x));
        let mut mixed = vec![vec![0.0; HEADS * dim]; x.len()];
        for (row, mixed) in mixed.iter_mut().enumerate() {
            for head in 0..HEADS {
                let (at, shared) = (head * dim, head / (HEADS / self.tiny.kv_heads) * dim);
                let score = |key: &Vec<f64>| (0..dim).map(|i| q[row][at + i] * key[shared + i]).sum::<f64>();
                let weights: Vec<f64> = k[..=row].iter().map(|key| (score(key) / (dim as f64).sqrt()).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (weight, value) in weights.iter().zip(&v) {
                    (0..dim).for_each(|i| mixed[at + i] += weight / total * value[shared + i]);
                }
            }
        }
        self.linear(&name("o"), &mixed)
    }

    fn mlp(&self, layer: usize, x: &Rows) -> Rows {
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}_proj");
        let (gate, up) = (self.linear(&name("gate"), x), self.linear(&name("up"), x));
        let inner = gate.iter().zip(&up).map(|(gate, up)| {
            let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            assert_eq!(inner.len(), INNER);
            inner
        });
        self.linear(&name("down"), &inner.collect())
    }

    fn logits(&self, tokens: &[u32]) -> Rows {
        let table = &self.tensors["model.embed_tokens.weight"].1;
        let mut x: Rows =
            tokens.iter().map(|&id| table[id as usize * HIDDEN..(id as usize + 1) * HIDDEN].to_vec()).collect();
        let add = |x: &mut Rows, y: Rows| {
            x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
        };
        for layer in 0..LAYERS {
            let mixed = self.attention(layer, &self.norm(&format!("model.layers.{layer}.input_layernorm"), &x));
            add(&mut x, mixed);
            let inner = self.mlp(layer, &self.norm(&format!("model.layers.{layer}.post_attention_layernorm"), &x));
            add(&mut x, inner);
        }
        self.linear("lm_head", &self.norm("model.norm", &x))
    }
}

fn check(tiny: Tiny, format: WeightFormat, kv_dtype: KvDtype, bound: f64) {
    check_files(&model(tiny.files()), tiny, format, kv_dtype, bound);
}

fn check_files(files: &ModelFiles, tiny: Tiny, format: WeightFormat, kv_dtype: KvDtype, bound: f64) {
    let tokens = tokens(40, VOCAB);
    let expected = Reference::new(tiny, format, kv_dtype).logits(&tokens);
    let slots: Vec<u32> = (0..tokens.len() as u32).collect();
    let got = in_chunks(&mut *loaded(files, format, kv_dtype, 2), &tokens, 16, &slots);
    let diff = max_diff(&got, &expected);
    println!("{tiny:?} {format} kv {kv_dtype}: max |diff| {diff:.2e}");
    assert!(diff <= bound, "{tiny:?} {format} kv {kv_dtype}: {diff:e} instead of at most {bound:e}");
    let spread = expected.iter().flatten().copied().fold(0.0, f64::max);
    assert!(spread > 1.0, "logits up to {spread} only: the bound would not say much");
}

const F32: (WeightFormat, KvDtype, f64) = (WeightFormat::F32, KvDtype::F32, 5e-5);

#[test]
fn logits_agree_with_a_reference_in_f64() {
    use specquant_core::{KvDtype as Kv, WeightFormat as Format};
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for tied in [true, false] {
            for format in [Format::F32, Format::F16, Format::Bf16] {
                check(Tiny { dtype, tied, ..TINY }, format, Kv::F32, F32.2);
            }
        }
        // A key or value that lies between two f16 may be rounded to either.
        check(Tiny { dtype, ..TINY }, Format::F16, Kv::F16, 1e-3);
    }
    let (format, kv, bound) = F32;
    for kv_heads in [1, 2, 4] {
        for head_dim in [2, 6, 8, 16, 20] {
            check(Tiny { kv_heads, head_dim, ..TINY }, format, kv, bound);
        }
    }
    for shards in [2, 5] {
        check(Tiny { shards, tied: false, ..TINY }, format, kv, bound);
    }
}

#[test]
fn a_folder_gives_the_same_model_as_its_files_in_memory() {
    let (format, kv, bound) = F32;
    for shards in [1, 3] {
        let tiny = Tiny { shards, dtype: Dtype::F16, ..TINY };
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in tiny.files() {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let files = ModelFiles::folder(folder.path()).unwrap();
        assert_eq!(files.summary().unwrap().files.len(), shards);
        check_files(&files, tiny, format, kv, bound);
        // Nothing stays mapped: a loaded model does not need its folder.
        let mut loaded = loaded(&files, format, kv, 1);
        folder.close().unwrap();
        in_chunks(&mut *loaded, &[1, 2], 1, &[0, 1]);
    }
}

#[test]
fn the_work_of_a_forward_is_that_of_its_matrices() {
    // A layer has 1024 + 512 + 512 + 1024 elements in attention and 3 x 1536 after it, the head 64 x 32; padding is no work.
    for (tiny, format, bytes) in [(TINY, WeightFormat::F32, 4), (Tiny { tied: false, ..TINY }, WeightFormat::F16, 2)] {
        let loaded = loaded(&model(tiny.files()), format, KvDtype::F32, 1);
        let expected =
            Work { row_flops: 4 * 7680, scored_flops: 4096, key_flops: 4 * 32 * 2, head_bytes: 2048 * bytes };
        assert_eq!(loaded.info().work, expected, "{tiny:?}");
        assert_eq!(loaded.info().memory.matrices, (2 * 7680 + 2048) * bytes);
    }
    // Heads of 6 make queries, keys and values 24 wide.
    let narrow = Tiny { head_dim: 6, kv_heads: 4, ..TINY };
    let work = loaded(&model(narrow.files()), WeightFormat::F32, KvDtype::F32, 1).info().work;
    assert_eq!((work.row_flops, work.key_flops), (4 * (4 * 24 * 32 + 3 * 1536), 4 * 24 * 2));
}
