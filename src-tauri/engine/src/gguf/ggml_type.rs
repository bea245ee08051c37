//! The element types of ggml tensors.

use std::fmt;

/// Element type of a GGUF tensor, by its id in the file.
///
/// Quantized types store blocks of [`block_size`](Self::block_size) consecutive elements of a row in
/// [`type_size`](Self::type_size) bytes; plain types have blocks of one element. Ids and sizes are those of `ggml.h`
/// and `ggml-common.h`; ids that ggml has withdrawn (4, 5, 31 to 33, 36 to 38) are unknown here as there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    non_camel_case_types,
    missing_docs,
    reason = "the names are ggml's own, and are their documentation"
)]
#[non_exhaustive]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    /// An id that is not in ggml's list. [`GgufFile::open`](super::GgufFile::open) refuses tensors of such a type,
    /// because their size cannot be known.
    Unknown(u32),
}

/// (type, id in the file, elements in a block, bytes in a block, name).
const TABLE: &[(GgmlType, u32, usize, usize, &str)] = &[
    (GgmlType::F32, 0, 1, 4, "F32"),
    (GgmlType::F16, 1, 1, 2, "F16"),
    (GgmlType::Q4_0, 2, 32, 18, "Q4_0"),
    (GgmlType::Q4_1, 3, 32, 20, "Q4_1"),
    (GgmlType::Q5_0, 6, 32, 22, "Q5_0"),
    (GgmlType::Q5_1, 7, 32, 24, "Q5_1"),
    (GgmlType::Q8_0, 8, 32, 34, "Q8_0"),
    (GgmlType::Q8_1, 9, 32, 36, "Q8_1"),
    (GgmlType::Q2_K, 10, 256, 84, "Q2_K"),
    (GgmlType::Q3_K, 11, 256, 110, "Q3_K"),
    (GgmlType::Q4_K, 12, 256, 144, "Q4_K"),
    (GgmlType::Q5_K, 13, 256, 176, "Q5_K"),
    (GgmlType::Q6_K, 14, 256, 210, "Q6_K"),
    (GgmlType::Q8_K, 15, 256, 292, "Q8_K"),
    (GgmlType::IQ2_XXS, 16, 256, 66, "IQ2_XXS"),
    (GgmlType::IQ2_XS, 17, 256, 74, "IQ2_XS"),
    (GgmlType::IQ3_XXS, 18, 256, 98, "IQ3_XXS"),
    (GgmlType::IQ1_S, 19, 256, 50, "IQ1_S"),
    (GgmlType::IQ4_NL, 20, 32, 18, "IQ4_NL"),
    (GgmlType::IQ3_S, 21, 256, 110, "IQ3_S"),
    (GgmlType::IQ2_S, 22, 256, 82, "IQ2_S"),
    (GgmlType::IQ4_XS, 23, 256, 136, "IQ4_XS"),
    (GgmlType::I8, 24, 1, 1, "I8"),
    (GgmlType::I16, 25, 1, 2, "I16"),
    (GgmlType::I32, 26, 1, 4, "I32"),
    (GgmlType::I64, 27, 1, 8, "I64"),
    (GgmlType::F64, 28, 1, 8, "F64"),
    (GgmlType::IQ1_M, 29, 256, 56, "IQ1_M"),
    (GgmlType::BF16, 30, 1, 2, "BF16"),
    (GgmlType::TQ1_0, 34, 256, 54, "TQ1_0"),
    (GgmlType::TQ2_0, 35, 256, 66, "TQ2_0"),
    (GgmlType::MXFP4, 39, 32, 17, "MXFP4"),
    (GgmlType::NVFP4, 40, 64, 36, "NVFP4"),
    (GgmlType::Q1_0, 41, 128, 18, "Q1_0"),
];

impl GgmlType {
    /// The type with this id; [`Unknown`](Self::Unknown) for an id that ggml does not define.
    pub fn from_id(id: u32) -> Self {
        TABLE
            .iter()
            .find(|row| row.1 == id)
            .map_or(Self::Unknown(id), |row| row.0)
    }

    fn row(self) -> Option<&'static (Self, u32, usize, usize, &'static str)> {
        TABLE.iter().find(|row| row.0 == self)
    }

    /// The id that stands in the file.
    pub fn id(self) -> u32 {
        match self {
            Self::Unknown(id) => id,
            known => known.row().map_or(u32::MAX, |row| row.1),
        }
    }

    /// Elements in a block; 0 for an unknown type.
    pub fn block_size(self) -> usize {
        self.row().map_or(0, |row| row.2)
    }

    /// Bytes in a block; 0 for an unknown type.
    pub fn type_size(self) -> usize {
        self.row().map_or(0, |row| row.3)
    }

    /// ggml's name, such as `Q4_K`; `unknown` for an unknown type.
    pub fn name(self) -> &'static str {
        self.row().map_or("unknown", |row| row.4)
    }

    /// Whether elements are stored in blocks that share scales.
    pub fn is_quantized(self) -> bool {
        self.block_size() > 1
    }

    /// The names of all known types, for messages.
    pub(super) fn known_names() -> String {
        let names: Vec<_> = TABLE.iter().map(|row| row.4).collect();
        names.join(", ")
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "unknown type {id}"),
            known => f.write_str(known.name()),
        }
    }
}
