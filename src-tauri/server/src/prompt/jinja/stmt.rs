//! Jinja2's statements, written out again for minijinja. The result has no text outside of tags: white space control is done
//! here, and printed text is counted like every other output.

use std::fmt::Write as _;

use super::CompileError;
use super::code::{Shape, quote};
use super::cursor::Parser;
use super::lexer::{Token, tokenize};

/// Deepest nesting of statements; templates in use stay below 15.
const MAX_NESTING: usize = 60;

/// Most `elif` branches of one `if`.
const MAX_BRANCHES: usize = 100;

/// Holds the body of a captured block until it is stored or printed.
const CAPTURE: &str = "_captured_block";

/// Rewrites a chat template into the language that [`super::environment`] understands. Lines keep their numbers.
pub(super) fn lower(source: &str) -> Result<String, CompileError> {
    let tokens = tokenize(source)?;
    let mut writer = Writer {
        parser: Parser::new(&tokens),
        out: String::new(),
        line: 1,
        nesting: 0,
        in_loop: false,
        jumps: false,
    };
    let end = writer.body(&[])?;
    debug_assert!(end.is_none());
    Ok(writer.out)
}

struct Writer<'t> {
    parser: Parser<'t>,
    out: String,
    /// The line of `out` that is being written.
    line: usize,
    nesting: usize,
    /// Whether `break` and `continue` may stand here.
    in_loop: bool,
    /// Whether the innermost loop has a `break` or `continue`.
    jumps: bool,
}

type Done = Result<(), CompileError>;

impl<'t> Writer<'t> {
    /// Begins a tag on the line it has in the template; `line` never runs ahead, since nothing else writes newlines.
    fn open(&mut self, delimiter: &str, line: usize) {
        self.out.push_str(delimiter);
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
        self.out.push(' ');
    }

    fn statement(&mut self, line: usize, text: &str) {
        self.open("{%", line);
        self.out.push_str(text);
        self.out.push_str(" %}");
    }

    fn print(&mut self, line: usize, expression: &str) {
        self.open("{{", line);
        self.out.push_str(expression);
        self.out.push_str(" }}");
    }

    fn block_end(&mut self) -> Done {
        match self.parser.next() {
            Token::BlockEnd => Ok(()),
            _ => {
                self.parser.back();
                Err(self.parser.unexpected("'%}'"))
            }
        }
    }

    /// Statements up to one of the tags `ends`, whose name is returned (its `%}` not yet passed); `None` is the template's end.
    fn body(&mut self, ends: &[&str]) -> Result<Option<&'t str>, CompileError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.parser.error(format!(
                "statements are nested more than {MAX_NESTING} deep"
            )));
        }
        let end = loop {
            let line = self.parser.line();
            match self.parser.next() {
                Token::Eof if ends.is_empty() => break None,
                Token::Eof => {
                    let ends: Vec<_> = ends.iter().map(|end| format!("'{end}'")).collect();
                    return Err(self.parser.error(format!(
                        "the template ends where {} was expected",
                        ends.join(" or ")
                    )));
                }
                Token::Data(text) => self.print(line, &quote(text)),
                Token::VariableBegin => {
                    let value = self.parser.tuple(true)?;
                    let Token::VariableEnd = self.parser.next() else {
                        self.parser.back();
                        return Err(self.parser.unexpected("'}}'"));
                    };
                    self.print(line, &value.text);
                }
                Token::BlockBegin => {
                    let Token::Name(name) = self.parser.next() else {
                        self.parser.back();
                        return Err(self.parser.unexpected("the name of a tag"));
                    };
                    if ends.contains(&name.as_str()) {
                        break Some(name.as_str());
                    }
                    self.tag(name, line)?;
                }
                _ => {
                    self.parser.back();
                    return Err(self.parser.unexpected("text or a tag"));
                }
            }
        };
        self.nesting -= 1;
        Ok(end)
    }

    fn tag(&mut self, name: &str, line: usize) -> Done {
        match name {
            "for" => self.for_loop(line),
            "if" => self.condition(line),
            "set" => self.set(line),
            "macro" => self.macro_definition(line),
            "call" => self.call_block(line),
            "filter" => self.filter_block(line),
            "with" => self.with_block(line),
            "generation" => self.generation(line),
            "break" | "continue" => {
                if !self.in_loop {
                    return Err(self
                        .parser
                        .error(format!("'{name}' is not directly inside a loop")));
                }
                self.jumps = true;
                self.block_end()?;
                self.statement(line, name);
                Ok(())
            }
            "print" => {
                let mut values = vec![self.parser.expression()?.text];
                while self.parser.skip_op(",") {
                    values.push(self.parser.expression()?.text);
                }
                self.block_end()?;
                values.iter().for_each(|value| self.print(line, value));
                Ok(())
            }
            name if name.starts_with("end") || matches!(name, "else" | "elif") => {
                Err(self.parser.error(format!("'{name}' has no matching start")))
            }
            name => Err(self
                .parser
                .error(format!("chat templates have no tag '{name}'"))),
        }
    }

    /// A body that ends with `end`, in a scope that `break` and `continue` cannot leave.
    fn closed_body(&mut self, end: &str) -> Done {
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        self.body(&[end])?;
        self.in_loop = in_loop;
        self.block_end()
    }

    fn for_loop(&mut self, line: usize) -> Done {
        let target = self.parser.target(false)?;
        if !self.parser.skip_name("in") {
            return Err(self.parser.unexpected("'in'"));
        }
        let mut head = format!("for {target} in {}|py.iter", self.parser.tuple(false)?.text);
        if self.parser.skip_name("if") {
            let _ = write!(head, " if {}", self.parser.expression()?.text);
        }
        if self.parser.skip_name("recursive") {
            head.push_str(" recursive");
        }
        self.block_end()?;
        let begin = self.out.len();
        self.statement(line, &head);
        let in_loop = std::mem::replace(&mut self.in_loop, true);
        let jumps = std::mem::replace(&mut self.jumps, false);
        let end = self.body(&["endfor", "else"])?;
        self.in_loop = in_loop;
        let has_jumps = std::mem::replace(&mut self.jumps, jumps);
        if end == Some("else") {
            self.block_end()?;
            // Jinja2 runs `else` unless some iteration came to the end of the body, which `break` and `continue` prevent.
            let finished = format!("_finished_{begin}");
            if has_jumps {
                self.out
                    .insert_str(begin, &format!("{{% set {finished} = namespace() %}}"));
                self.statement(line, &format!("set {finished}.one = true"));
                self.statement(line, "endfor");
                self.statement(line, &format!("if not {finished}|py.attr(\"one\", \"\")"));
            } else {
                self.statement(line, "else");
            }
            self.else_body()?;
            self.statement(line, if has_jumps { "endif" } else { "endfor" });
        } else {
            self.block_end()?;
            self.statement(line, "endfor");
        }
        Ok(())
    }

    /// The body of a loop's `else`, up to `endfor`: a scope of its own, but for minijinja's scopes `break` and `continue` (of an
    /// outer loop) are walls, so with these it shares the scope around it.
    fn else_body(&mut self) -> Done {
        let begin = self.out.len();
        let line = self.line;
        let jumps = std::mem::replace(&mut self.jumps, false);
        self.body(&["endfor"])?;
        self.block_end()?;
        if !self.jumps {
            self.out.insert_str(begin, "{% with %}");
            self.statement(line, "endwith");
        }
        self.jumps |= jumps;
        Ok(())
    }

    fn condition(&mut self, line: usize) -> Done {
        let test = self.parser.tuple(false)?;
        self.block_end()?;
        self.statement(line, &format!("if {}", test.text));
        let mut branches = 0;
        let mut ends: &[&str] = &["elif", "else", "endif"];
        loop {
            let end = self.body(ends)?;
            let line = self.parser.line();
            match end {
                Some("elif") => {
                    branches += 1;
                    if branches > MAX_BRANCHES {
                        return Err(self.parser.error(format!(
                            "an 'if' has more than {MAX_BRANCHES} 'elif' branches"
                        )));
                    }
                    let test = self.parser.tuple(false)?;
                    self.block_end()?;
                    self.statement(line, &format!("elif {}", test.text));
                }
                Some("else") => {
                    self.block_end()?;
                    self.statement(line, "else");
                    ends = &["endif"];
                }
                _ => break,
            }
        }
        self.block_end()?;
        self.statement(line, "endif");
        Ok(())
    }

    fn set(&mut self, line: usize) -> Done {
        let target = self.parser.target(true)?;
        // What a namespace keeps is checked: see `value::is_data`.
        let store = if target.contains('.') {
            "|py.store"
        } else {
            ""
        };
        if self.parser.skip_op("=") {
            let value = self.parser.tuple(true)?;
            self.block_end()?;
            self.statement(line, &format!("set {target} = {}{store}", value.text));
            return Ok(());
        }
        let filters = self.filter_chain()?;
        self.block_end()?;
        self.capture("endset", line)?;
        self.statement(line, &format!("set {target} = {CAPTURE}{filters}{store}"));
        Ok(())
    }

    /// `|a|b(c)`, each with its `|`; may be empty.
    fn filter_chain(&mut self) -> Result<String, CompileError> {
        let mut text = String::new();
        while self.parser.skip_op("|") {
            self.append_filter(&mut text)?;
        }
        Ok(text)
    }

    fn append_filter(&mut self, text: &mut String) -> Done {
        let (name, args) = self.parser.filter_call()?;
        let _ = if args.is_empty() {
            write!(text, "|{name}")
        } else {
            write!(text, "|{name}({args})")
        };
        Ok(())
    }

    /// The parameters of a macro, and the statements that its body begins with.
    fn signature(&mut self) -> Result<(String, String), CompileError> {
        self.parser.expect_op("(")?;
        let mut names = Vec::new();
        let mut text = String::new();
        while !self.parser.skip_op(")") {
            if !text.is_empty() {
                self.parser.expect_op(",")?;
                text.push_str(", ");
            }
            let name = self.parser.expect_identifier()?;
            names.push(name);
            text.push_str(name);
            if self.parser.skip_op("=") {
                text.push_str(" = ");
                text.push_str(&self.parser.expression()?.text);
            }
        }
        // See `py.pass`.
        let received = names
            .into_iter()
            .map(|name| format!("{{% set {name} = {name}|py.receive %}}"))
            .collect();
        Ok((text, received))
    }

    fn macro_definition(&mut self, line: usize) -> Done {
        let name = self.parser.expect_identifier()?;
        let (signature, received) = self.signature()?;
        self.block_end()?;
        self.statement(line, &format!("macro {name}({signature})"));
        self.out.push_str(&received);
        self.macro_body("endmacro")?;
        self.statement(line, "endmacro");
        Ok(())
    }

    fn macro_body(&mut self, end: &str) -> Done {
        let in_macro = std::mem::replace(&mut self.parser.in_macro, true);
        self.closed_body(end)?;
        self.parser.in_macro = in_macro;
        Ok(())
    }

    fn call_block(&mut self, line: usize) -> Done {
        let (signature, received) = if self.parser.is_op("(") {
            let (signature, received) = self.signature()?;
            (format!("({signature})"), received)
        } else {
            (String::new(), String::new())
        };
        let call = self.parser.expression()?;
        if call.shape != Shape::NameCall {
            return Err(self
                .parser
                .error("'call' needs the call of a macro by its name"));
        }
        self.block_end()?;
        self.statement(line, &format!("call{signature} {}", call.text));
        self.out.push_str(&received);
        self.macro_body("endcall")?;
        self.statement(line, "endcall");
        Ok(())
    }

    fn filter_block(&mut self, line: usize) -> Done {
        let mut filters = String::new();
        self.append_filter(&mut filters)?;
        filters.push_str(&self.filter_chain()?);
        self.block_end()?;
        self.capture("endfilter", line)?;
        self.print(line, &format!("{CAPTURE}{filters}"));
        Ok(())
    }

    /// Captures what a body prints into [`CAPTURE`]. What the body sets stays inside.
    fn capture(&mut self, end: &str, line: usize) -> Done {
        self.statement(line, &format!("set {CAPTURE}"));
        self.statement(line, "with");
        self.closed_body(end)?;
        self.statement(line, "endwith");
        self.statement(line, "endset");
        Ok(())
    }

    fn with_block(&mut self, line: usize) -> Done {
        let mut assignments = Vec::new();
        while *self.parser.peek() != Token::BlockEnd {
            if !assignments.is_empty() {
                self.parser.expect_op(",")?;
            }
            let name = self.parser.expect_identifier()?;
            self.parser.expect_op("=")?;
            assignments.push(format!("{name} = {}", self.parser.expression()?.text));
        }
        self.block_end()?;
        self.statement(line, &format!("with {}", assignments.join(", ")));
        self.closed_body("endwith")?;
        self.statement(line, "endwith");
        Ok(())
    }

    /// `{% generation %}` marks what the assistant wrote, for training. It prints its body, in a scope of its own.
    fn generation(&mut self, line: usize) -> Done {
        self.block_end()?;
        self.statement(line, "with");
        self.closed_body("endgeneration")?;
        self.statement(line, "endwith");
        Ok(())
    }
}
