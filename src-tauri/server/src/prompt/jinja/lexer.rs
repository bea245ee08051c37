//! Splits a template into text and tokens as Jinja2's lexer does in the environment of `apply_chat_template`
//! (`trim_blocks`, `lstrip_blocks`, no line statements, the last newline dropped).

use super::CompileError;

/// A token of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text to print, whitespace control already applied.
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

/// A token and the line (from 1) on which it begins.
#[derive(Debug, Clone)]
pub(super) struct Spanned {
    pub(super) token: Token,
    pub(super) line: usize,
}

const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Python's `str.isspace` for one character: Unicode white space and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Splits `source` into tokens; the last is [`Token::Eof`].
pub(super) fn tokenize(source: &str) -> Result<Vec<Spanned>, CompileError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer {
        source: &source,
        at: 0,
        line: 1,
        line_starting: true,
        tokens: Vec::new(),
    };
    lexer.template()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// Whether the last tag ended with a newline, so that the text after it begins a line.
    line_starting: bool,
    tokens: Vec<Spanned>,
}

/// The `-` or `+` beside a delimiter.
#[derive(Clone, Copy, PartialEq)]
enum Sign {
    None,
    Strip,
    Keep,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.matches('\n').count();
        self.line_starting = passed.ends_with('\n');
        self.at += bytes;
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.advance(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn error(&self, message: impl Into<String>) -> CompileError {
        CompileError {
            line: self.line,
            message: message.into(),
        }
    }

    fn push(&mut self, token: Token) {
        self.tokens.push(Spanned {
            token,
            line: self.line,
        });
    }

    fn template(&mut self) -> Result<(), CompileError> {
        loop {
            let rest = self.rest();
            let Some(begin) = find_tag(rest) else {
                self.data(rest);
                self.advance(rest.len());
                break;
            };
            let (text, tag) = rest.split_at(begin);
            let sign = match tag.as_bytes().get(2) {
                Some(b'-') => Sign::Strip,
                Some(b'+') => Sign::Keep,
                _ => Sign::None,
            };
            let is_variable = tag.starts_with("{{");
            self.data(strip_before(
                text,
                sign,
                !is_variable && self.line_starting,
                is_variable,
            ));
            self.advance(begin);
            let raw = raw_tag_len(tag, "raw");
            if let Some(len) = raw {
                self.advance(len);
                self.raw_block()?;
                continue;
            }
            self.advance(if sign == Sign::None { 2 } else { 3 });
            if tag.starts_with("{#") {
                self.comment()?;
            } else if is_variable {
                self.push(Token::VariableBegin);
                self.tag(Token::VariableEnd)?;
            } else {
                self.push(Token::BlockBegin);
                self.tag(Token::BlockEnd)?;
            }
        }
        self.push(Token::Eof);
        Ok(())
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.to_owned()));
        }
    }

    fn comment(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let end = rest
            .find("#}")
            .ok_or_else(|| self.error("a comment is not closed with '#}'"))?;
        let sign = match end.checked_sub(1).map(|i| rest.as_bytes()[i]) {
            Some(b'-') => Sign::Strip,
            Some(b'+') => Sign::Keep,
            _ => Sign::None,
        };
        self.advance(end + 2);
        self.after_tag(sign, true);
        Ok(())
    }

    /// White space that the end of a tag swallows.
    fn after_tag(&mut self, sign: Sign, trims_newline: bool) {
        match sign {
            Sign::Strip => {
                let rest = self.rest();
                let bytes = rest.len() - rest.trim_start_matches(is_space).len();
                if bytes > 0 {
                    self.advance(bytes);
                }
            }
            Sign::None if trims_newline && self.rest().starts_with('\n') => self.advance(1),
            _ => {}
        }
    }

    fn raw_block(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let (begin, len) = rest
            .match_indices("{%")
            .find_map(|(i, _)| raw_tag_len(&rest[i..], "endraw").map(|len| (i, len)))
            .ok_or_else(|| self.error("a raw block is not closed with '{% endraw %}'"))?;
        let tag = &rest[begin..begin + len];
        let sign = match tag.as_bytes().get(2) {
            Some(b'-') => Sign::Strip,
            Some(b'+') => Sign::Keep,
            _ => Sign::None,
        };
        self.data(strip_before(
            &rest[..begin],
            sign,
            self.line_starting,
            false,
        ));
        self.advance(begin + len);
        if tag.ends_with("%}") {
            let sign = match tag.as_bytes()[len - 3] {
                b'-' => Sign::Strip,
                b'+' => Sign::Keep,
                _ => Sign::None,
            };
            self.after_tag(sign, true);
        }
        Ok(())
    }

    /// The inside of `{{ }}` or `{% %}`, up to and with its end.
    fn tag(&mut self, end: Token) -> Result<(), CompileError> {
        let mut open = Vec::new();
        loop {
            self.skip_space();
            if open.is_empty() && self.tag_end(&end) {
                return Ok(());
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return Err(self.error("a tag is not closed"));
            };
            if first.is_ascii_digit() {
                self.number()?;
            } else if first.is_alphabetic() || first == '_' {
                let len = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                let name = &rest[..len];
                if !name.is_ascii() {
                    return Err(self.error(format!(
                        "the name '{name}' has a character that is not ASCII"
                    )));
                }
                self.push(Token::Name(name.to_owned()));
                self.advance(len);
            } else if first == '\'' || first == '"' {
                self.string(first)?;
            } else {
                let op = OPERATORS
                    .into_iter()
                    .find(|op| rest.starts_with(op))
                    .ok_or_else(|| self.error(format!("unexpected character {first:?}")))?;
                match op {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" => match open.pop() {
                        None => return Err(self.error(format!("unexpected '{op}'"))),
                        Some(expected) if expected != op => {
                            return Err(
                                self.error(format!("unexpected '{op}', expected '{expected}'"))
                            );
                        }
                        Some(_) => {}
                    },
                    _ => {}
                }
                self.push(Token::Op(op));
                self.advance(op.len());
            }
        }
    }

    fn tag_end(&mut self, end: &Token) -> bool {
        let (delimiter, trims_newline) = if *end == Token::VariableEnd {
            ("}}", false)
        } else {
            ("%}", true)
        };
        let rest = self.rest();
        let (sign, body) = match rest.as_bytes().first() {
            Some(b'-') => (Sign::Strip, &rest[1..]),
            Some(b'+') if trims_newline => (Sign::Keep, &rest[1..]),
            _ => (Sign::None, rest),
        };
        if !body.starts_with(delimiter) {
            return false;
        }
        self.push(end.clone());
        self.advance(rest.len() - body.len() + 2);
        self.after_tag(sign, trims_newline);
        true
    }

    fn number(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let after_dot = self.source[..self.at].ends_with('.');
        if let Some(len) = (!after_dot).then(|| float_len(rest)).flatten() {
            let digits = rest[..len].replace('_', "");
            let value = digits
                .parse()
                .map_err(|_| self.error(format!("'{digits}' is not a number")))?;
            self.push(Token::Float(value));
            self.advance(len);
            return Ok(());
        }
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0b") => 2,
            Some("0o") => 8,
            Some("0x") => 16,
            _ => 10,
        };
        let (skip, digits_len) = if radix == 10 {
            let zeros_only = rest.starts_with('0');
            (
                0,
                digits_len(rest, |c| {
                    if zeros_only {
                        c == '0'
                    } else {
                        c.is_ascii_digit()
                    }
                }),
            )
        } else {
            (2, digits_len(&rest[2..], |c| c.is_digit(radix)))
        };
        let digits = rest[skip..skip + digits_len].replace('_', "");
        let value = i128::from_str_radix(&digits, radix)
            .map_err(|_| self.error(format!("the number '{digits}' is too large")))?;
        self.push(Token::Int(value));
        self.advance(skip + digits_len);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), CompileError> {
        let body = &self.rest()[1..];
        let mut escaped = false;
        let end = body
            .char_indices()
            .find(|&(_, c)| {
                let ends = c == quote && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })
            .map(|(i, _)| i)
            .ok_or_else(|| self.error("a string is not closed"))?;
        let value = unescape(&body[..end]).map_err(|message| self.error(message))?;
        self.push(Token::Str(value));
        self.advance(end + 2);
        Ok(())
    }
}

/// Where the next `{{`, `{%` or `{#` begins.
fn find_tag(text: &str) -> Option<usize> {
    text.match_indices('{')
        .map(|(i, _)| i)
        .find(|&i| matches!(text.as_bytes().get(i + 1), Some(b'{' | b'%' | b'#')))
}

/// Text before a tag: all its trailing white space goes under `-`; otherwise, before anything but a variable, the white space
/// between the last newline and the tag goes.
fn strip_before(text: &str, sign: Sign, line_starting: bool, is_variable: bool) -> &str {
    match sign {
        Sign::Strip => text.trim_end_matches(is_space),
        Sign::Keep => text,
        Sign::None if is_variable => text,
        Sign::None => {
            let line_begin = text.rfind('\n').map_or(0, |i| i + 1);
            if (line_begin > 0 || line_starting) && text[line_begin..].chars().all(is_space) {
                &text[..line_begin]
            } else {
                text
            }
        }
    }
}

/// Length of `{% raw %}` or `{% endraw %}` (any white space and signs) at the start of `tag`.
fn raw_tag_len(tag: &str, keyword: &str) -> Option<usize> {
    let body = tag.strip_prefix("{%")?;
    let body = body.strip_prefix(['-', '+']).unwrap_or(body);
    let body = body
        .trim_start_matches(is_space)
        .strip_prefix(keyword)?
        .trim_start_matches(is_space);
    if keyword == "raw" {
        // The start of a raw block takes the white space after `-%}`, but no newline of its own.
        if let Some(rest) = body.strip_prefix("-%}") {
            return Some(tag.len() - rest.trim_start_matches(is_space).len());
        }
        return body.strip_prefix("%}").map(|rest| tag.len() - rest.len());
    }
    let body = body.strip_prefix(['-', '+']).unwrap_or(body);
    body.strip_prefix("%}").map(|rest| tag.len() - rest.len())
}

/// Length of digits in which single underscores may stand between two of them.
fn digits_len(text: &str, is_digit: impl Fn(char) -> bool) -> usize {
    let mut len = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        let next_is_digit = chars.peek().is_some_and(|&(_, next)| is_digit(next));
        if is_digit(c) {
            len = i + 1;
        } else if !(c == '_' && next_is_digit) {
            break;
        }
    }
    len
}

/// Length of a float literal (one with a fraction or an exponent).
fn float_len(text: &str) -> Option<usize> {
    let digit = |c: char| c.is_ascii_digit();
    let whole = digits_len(text, digit);
    let mut len = whole;
    if let Some(fraction) = text[len..].strip_prefix('.') {
        let digits = digits_len(fraction, digit);
        if digits > 0 && fraction.starts_with(digit) {
            len += 1 + digits;
        }
    }
    if let Some(exponent) = text[len..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let digits = digits_len(unsigned, digit);
        if digits > 0 && unsigned.starts_with(digit) {
            return Some(len + 1 + (exponent.len() - unsigned.len()) + digits);
        }
    }
    (len > whole).then_some(len)
}

/// Python's `unicode-escape` decoding: unknown escapes stay as they are.
fn unescape(body: &str) -> Result<String, String> {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut chars = rest.chars();
        let Some(c) = chars.next() else {
            return Err("a string ends with a single backslash".into());
        };
        rest = chars.as_str();
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                let more = rest
                    .bytes()
                    .take(2)
                    .take_while(|b| (b'0'..=b'7').contains(b))
                    .count();
                let digits = format!("{c}{}", &rest[..more]);
                rest = &rest[more..];
                out.push(code_point(&digits, 8)?);
            }
            'x' | 'u' | 'U' => {
                let len = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits = rest
                    .get(..len)
                    .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                let digits = digits.ok_or_else(|| {
                    format!("the escape '\\{c}' in a string needs {len} hexadecimal digits")
                })?;
                out.push(code_point(digits, 16)?);
                rest = &rest[len..];
            }
            'N' => return Err("escapes by character name ('\\N{...}') are not supported".into()),
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn code_point(digits: &str, radix: u32) -> Result<char, String> {
    u32::from_str_radix(digits, radix)
        .ok()
        .and_then(char::from_u32)
        .ok_or_else(|| format!("the escape '{digits}' in a string is not a Unicode character"))
}
