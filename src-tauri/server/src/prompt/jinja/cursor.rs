//! Walks the tokens of a template, one ahead, and says what is wrong with them.

use super::CompileError;
use super::lexer::{Spanned, Token};

/// Deepest nesting of expressions; templates in use stay below 10. With [`MAX_CHAIN`] it bounds the depth of minijinja's syntax
/// tree, which is walked by recursion.
const MAX_DEPTH: usize = 32;

/// Most steps in one chain: `a.b.c|d|e`, or operands joined by operators of one precedence.
const MAX_CHAIN: usize = 40;

/// Walks the tokens of a template.
pub(super) struct Parser<'t> {
    tokens: &'t [Spanned],
    pub(super) at: usize,
    depth: usize,
    pub(super) in_macro: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: &'t [Spanned]) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
            in_macro: false,
        }
    }

    pub(super) fn peek(&self) -> &'t Token {
        self.ahead(0)
    }

    pub(super) fn ahead(&self, n: usize) -> &'t Token {
        self.tokens
            .get(self.at + n)
            .map_or(&Token::Eof, |t| &t.token)
    }

    pub(super) fn line(&self) -> usize {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.at.min(last)).map_or(1, |t| t.line)
    }

    pub(super) fn next(&mut self) -> &'t Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Takes the last `next` back.
    pub(super) fn back(&mut self) {
        self.at -= 1;
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(o) if *o == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(n) if n == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<(), CompileError> {
        if self.skip_op(op) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("'{op}'")))
        }
    }

    pub(super) fn expect_identifier(&mut self) -> Result<&'t str, CompileError> {
        match self.peek() {
            Token::Name(name) if !is_keyword(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn error(&self, message: impl Into<String>) -> CompileError {
        CompileError {
            line: self.line(),
            message: message.into(),
        }
    }

    pub(super) fn unexpected(&self, expected: &str) -> CompileError {
        let found = match self.peek() {
            Token::Data(_) => "text".into(),
            Token::VariableBegin => "'{{'".into(),
            Token::VariableEnd => "'}}'".into(),
            Token::BlockBegin => "'{%'".into(),
            Token::BlockEnd => "'%}'".into(),
            Token::Name(name) => format!("'{name}'"),
            Token::Str(_) => "a string".into(),
            Token::Int(_) | Token::Float(_) => "a number".into(),
            Token::Op(op) => format!("'{op}'"),
            Token::Eof => "the end of the template".into(),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    /// Runs `parse` one level deeper.
    pub(super) fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error(format!("expressions are nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    pub(super) fn count_step(&self, chain: &mut usize) -> Result<(), CompileError> {
        *chain += 1;
        if *chain > MAX_CHAIN {
            return Err(self.error(format!(
                "more than {MAX_CHAIN} steps in one chain of operators, attributes or filters"
            )));
        }
        Ok(())
    }
}

/// Words that cannot be variables.
pub(super) fn is_keyword(name: &str) -> bool {
    matches!(
        name,
        "and"
            | "or"
            | "not"
            | "in"
            | "is"
            | "if"
            | "else"
            | "elif"
            | "for"
            | "true"
            | "false"
            | "none"
            | "True"
            | "False"
            | "None"
    )
}
