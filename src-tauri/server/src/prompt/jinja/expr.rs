//! Jinja2's expression grammar, written out again for minijinja: every operator whose meaning differs between Python and
//! minijinja becomes a filter of ours (`a ~ b` becomes `a|py.cat(b)`). Filters live in a namespace of their own, so no variable
//! of a template can shadow one.

use super::CompileError;
use super::code::{Code, Shape, filter, item, join_path, quote};
use super::cursor::{Parser, is_keyword};
use super::lexer::Token;

impl Parser<'_> {
    /// `expression`
    pub(super) fn expression(&mut self) -> Result<Code, CompileError> {
        self.nested(Self::conditional)
    }

    /// `a if condition else b`
    fn conditional(&mut self) -> Result<Code, CompileError> {
        let mut value = self.or()?;
        let mut chain = 0;
        while self.skip_name("if") {
            self.count_step(&mut chain)?;
            let condition = self.or()?.text;
            value = Code::new(if self.skip_name("else") {
                format!(
                    "({} if {condition} else {})",
                    value.text,
                    self.expression()?.text
                )
            } else {
                format!("({} if {condition})", value.text)
            });
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Code, CompileError> {
        self.logical("or", |p| p.logical("and", Self::not))
    }

    fn logical(
        &mut self,
        word: &str,
        operand: impl Fn(&mut Self) -> Result<Code, CompileError>,
    ) -> Result<Code, CompileError> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut text = format!("({}", first.text);
        let mut chain = 0;
        while self.skip_name(word) {
            self.count_step(&mut chain)?;
            text.push_str(&format!(" {word} {}", operand(self)?.text));
        }
        text.push(')');
        Ok(Code::new(text))
    }

    fn not(&mut self) -> Result<Code, CompileError> {
        if self.skip_name("not") {
            let value = self.nested(Self::not)?;
            return Ok(Code::new(format!("(not {})", value.text)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Code, CompileError> {
        let first = self.sum()?;
        let mut operators = Vec::new();
        let mut operands = vec![first.text.clone()];
        loop {
            let name = match (self.peek(), self.ahead(1)) {
                (Token::Op("=="), _) => "eq",
                (Token::Op("!="), _) => "ne",
                (Token::Op("<"), _) => "lt",
                (Token::Op("<="), _) => "le",
                (Token::Op(">"), _) => "gt",
                (Token::Op(">="), _) => "ge",
                (Token::Name(word), _) if word == "in" => "in",
                (Token::Name(word), Token::Name(next)) if word == "not" && next == "in" => {
                    self.at += 1;
                    "notin"
                }
                _ => break,
            };
            self.at += 1;
            operators.push(format!("\"{name}\""));
            operands.push(self.sum()?.text);
        }
        Ok(match operators.len() {
            0 => first,
            1 => first.filter("py.compare", &format!("{}, {}", operators[0], operands[1])),
            _ => Code::new(format!(
                "[{}]|py.chain({})",
                operands.join(", "),
                operators.join(", ")
            )),
        })
    }

    /// A run of left-associative operators becomes one filter per operator, with all the operands that follow as its arguments.
    fn binary(
        &mut self,
        operators: &[(&str, &str)],
        operand: impl Fn(&mut Self) -> Result<Code, CompileError>,
    ) -> Result<Code, CompileError> {
        let mut left = operand(self)?;
        let mut chain = 0;
        while let Some(&(op, name)) = operators.iter().find(|(op, _)| self.is_op(op)) {
            self.count_step(&mut chain)?;
            let mut args = String::new();
            while self.skip_op(op) {
                if !args.is_empty() {
                    args.push_str(", ");
                }
                args.push_str(&operand(self)?.text);
            }
            left = left.filter(name, &args);
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Code, CompileError> {
        self.binary(&[("+", "py.add"), ("-", "py.sub")], |p| {
            p.binary(&[("~", "py.cat")], Self::product)
        })
    }

    fn product(&mut self) -> Result<Code, CompileError> {
        let operators = [
            ("*", "py.mul"),
            ("/", "py.div"),
            ("//", "py.floordiv"),
            ("%", "py.mod"),
        ];
        self.binary(&operators, |p| {
            p.binary(&[("**", "py.pow")], |p| p.unary(true))
        })
    }

    fn unary(&mut self, with_filters: bool) -> Result<Code, CompileError> {
        let value = if self.skip_op("-") {
            self.nested(|p| p.unary(false))?.filter("py.neg", "")
        } else if self.skip_op("+") {
            self.nested(|p| p.unary(false))?.filter("py.pos", "")
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if with_filters {
            self.filters(value)
        } else {
            Ok(value)
        }
    }

    fn primary(&mut self) -> Result<Code, CompileError> {
        match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Ok(Code::new("true".into())),
                "false" | "False" => Ok(Code::new("false".into())),
                "none" | "None" => Ok(Code::new("none".into())),
                "varargs" | "kwargs" if self.in_macro => Err(self.error(format!(
                    "'{name}' in a macro is not supported by this server"
                ))),
                name if is_keyword(name) => {
                    self.at -= 1;
                    Err(self.unexpected("an expression"))
                }
                name => Ok(Code {
                    text: name.to_owned(),
                    path: name.to_owned(),
                    shape: Shape::Name,
                }),
            },
            Token::Str(first) => {
                let mut text = first.clone();
                while let Token::Str(more) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Ok(Code::new(quote(&text)))
            }
            Token::Int(n) => Ok(Code::new(n.to_string())),
            Token::Float(x) if x.is_finite() => Ok(Code::new(format!("{x:?}"))),
            Token::Op("(") => self.parenthesized(),
            Token::Op("[") => {
                let items = self.items("]")?;
                Ok(Code::new(format!("[{items}]|py.list")))
            }
            Token::Op("{") => self.dict(),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an expression"))
            }
        }
    }

    fn parenthesized(&mut self) -> Result<Code, CompileError> {
        if self.skip_op(")") {
            return Ok(Code::new("[]|py.tuple".into()));
        }
        let first = self.expression()?;
        if self.skip_op(")") {
            return Ok(first);
        }
        self.expect_op(",")?;
        let rest = self.items(")")?;
        Ok(Code::new(format!("[{}, {rest}]|py.tuple", first.text)))
    }

    /// `a, b, c` up to and with `end`; a comma may stand before the end.
    fn items(&mut self, end: &str) -> Result<String, CompileError> {
        let mut text = String::new();
        while !self.skip_op(end) {
            if !text.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(end) {
                    break;
                }
                text.push_str(", ");
            }
            text.push_str(&self.expression()?.text);
        }
        Ok(text)
    }

    fn dict(&mut self) -> Result<Code, CompileError> {
        let mut text = String::new();
        while !self.skip_op("}") {
            if !text.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
                text.push_str(", ");
            }
            let key = self.expression()?.text;
            self.expect_op(":")?;
            let value = self.expression()?.text;
            text.push_str(&format!("{key}, {value}"));
        }
        Ok(Code::new(format!("[{text}]|py.dict")))
    }

    /// A tuple without parentheses: `a`, or `a, b`. `with_condition` allows `x if y` in it.
    pub(super) fn tuple(&mut self, with_condition: bool) -> Result<Code, CompileError> {
        let item = |p: &mut Self| {
            if with_condition {
                p.expression()
            } else {
                p.nested(Self::or)
            }
        };
        let first = item(self)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut text = first.text;
        while self.skip_op(",") {
            if matches!(self.peek(), Token::BlockEnd | Token::VariableEnd) {
                break;
            }
            text.push_str(", ");
            text.push_str(&item(self)?.text);
        }
        Ok(Code::new(format!("[{text}]|py.tuple")))
    }

    fn postfix(&mut self, mut value: Code) -> Result<Code, CompileError> {
        let mut chain = 0;
        loop {
            self.count_step(&mut chain)?;
            if self.skip_op(".") {
                value = match self.next() {
                    Token::Name(name) => {
                        let (text, path) = (value.text, value.path);
                        Code {
                            text: filter(
                                text.clone(),
                                "py.attr",
                                &format!("\"{name}\", {}", quote(&path)),
                            ),
                            path: join_path(&path, &format!(".{name}")),
                            shape: Shape::Attribute(text, path, name.clone()),
                        }
                    }
                    Token::Int(n) => item(value, &n.to_string(), &n.to_string()),
                    _ => {
                        self.at -= 1;
                        return Err(self.unexpected("a name after '.'"));
                    }
                };
            } else if self.skip_op("[") {
                value = self.subscript(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, base: Code) -> Result<Code, CompileError> {
        let mut parts = [
            String::from("none"),
            String::from("none"),
            String::from("none"),
        ];
        let mut index = 0;
        let mut is_slice = false;
        let mut path = String::new();
        let mut key_text = None;
        loop {
            if self.skip_op("]") {
                break;
            }
            if self.skip_op(":") {
                is_slice = true;
                index += 1;
                if index > 2 {
                    return Err(self.unexpected("']'"));
                }
                continue;
            }
            if self.is_op(",") && !is_slice {
                // `base[a, b]` asks for the tuple `(a, b)`.
                self.at += 1;
                let rest = self.items("]")?;
                let first = key_text.unwrap_or_default();
                return Ok(item(base, &format!("[{first}, {rest}]|py.tuple"), "..."));
            }
            if let Token::Str(key) = self.peek() {
                path = format!("'{key}'");
            } else if let Token::Int(n) = self.peek() {
                path = n.to_string();
            }
            let code = self.expression()?;
            if path.is_empty() {
                path = code.path.clone();
            }
            if !self.is_op("]") && !self.is_op(":") && !self.is_op(",") {
                return Err(self.unexpected("']'"));
            }
            parts[index] = code.text.clone();
            key_text = Some(code.text);
        }
        if is_slice {
            let path = join_path(&base.path, "[...]");
            let text = filter(
                base.text,
                "py.slice",
                &format!(
                    "{}, {}, {}, {}",
                    parts[0],
                    parts[1],
                    parts[2],
                    quote(&base.path)
                ),
            );
            return Ok(Code::with_path(text, path));
        }
        match key_text {
            Some(key) => Ok(item(base, &key, &path)),
            None => Err(self.error("expected an expression between '[' and ']'")),
        }
    }

    /// What `set` and `for` assign to: `a`, `a, b` or `(a, (b, c))`; `dotted` allows `namespace.name`.
    pub(super) fn target(&mut self, dotted: bool) -> Result<String, CompileError> {
        let mut text = String::new();
        loop {
            if self.skip_op("(") {
                let inner = self.nested(|p| p.target(dotted))?;
                self.expect_op(")")?;
                text.push_str(&format!("({inner})"));
            } else {
                text.push_str(self.expect_identifier()?);
                if dotted && self.skip_op(".") {
                    text.push('.');
                    text.push_str(self.expect_identifier()?);
                }
            }
            if !self.skip_op(",") {
                return Ok(text);
            }
            text.push_str(", ");
            if self.is_name("in")
                || self.is_op("=")
                || self.is_op(")")
                || *self.peek() == Token::BlockEnd
            {
                return Ok(text);
            }
        }
    }

    /// The arguments of a call, from `(` to `)`; `suffix` is appended to each that stands for one value.
    fn arguments(&mut self, suffix: &str) -> Result<String, CompileError> {
        self.expect_op("(")?;
        let mut text = String::new();
        while !self.skip_op(")") {
            if !text.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
                text.push_str(", ");
            }
            if self.skip_op("*") {
                text.push_str(&format!("*{}|py.iter", self.expression()?.text));
            } else if self.skip_op("**") {
                text.push_str(&format!("**{}", self.expression()?.text));
            } else if let (Token::Name(name), Token::Op("=")) = (self.peek(), self.ahead(1)) {
                self.at += 2;
                text.push_str(&format!("{name}={}{suffix}", self.expression()?.text));
            } else {
                text.push_str(&self.expression()?.text);
                text.push_str(suffix);
            }
        }
        Ok(text)
    }

    fn call(&mut self, callee: Code) -> Result<Code, CompileError> {
        let is_method = matches!(callee.shape, Shape::Attribute(..))
            || callee.shape == Shape::Name && callee.text == "loop";
        let args = self.arguments(if is_method { "" } else { "|py.pass" })?;
        let path = join_path(&callee.path, "(...)");
        Ok(match callee.shape {
            // Recursion into a loop: what it iterates over is converted as in the loop's head.
            Shape::Name if callee.text == "loop" => {
                let mut code = Code::new(format!("loop({args}|py.iter)"));
                code.shape = Shape::NameCall;
                code
            }
            Shape::Name => Code {
                shape: Shape::NameCall,
                ..Code::with_path(format!("{}({args})", callee.text), path)
            },
            Shape::Attribute(base, base_path, name) => {
                let separator = if args.is_empty() { "" } else { ", " };
                let args = format!("\"{name}\", {}{separator}{args}", quote(&base_path));
                Code::with_path(filter(base, "py.call", &args), path)
            }
            Shape::NameCall | Shape::Other => {
                Code::with_path(format!("({})({args})", callee.text), path)
            }
        })
    }

    /// `|filter(args)` and `is test args`.
    fn filters(&mut self, mut value: Code) -> Result<Code, CompileError> {
        let mut chain = 0;
        loop {
            self.count_step(&mut chain)?;
            if self.skip_op("|") {
                value = self.one_filter(value)?;
            } else if self.skip_name("is") {
                value = self.test(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    /// One filter; the `|` is passed already.
    pub(super) fn filter_call(&mut self) -> Result<(String, String), CompileError> {
        let name = self.dotted_name()?;
        let args = if self.is_op("(") {
            self.arguments("")?
        } else {
            String::new()
        };
        if super::filters::is_known(&name) {
            Ok((name, args))
        } else {
            Ok((
                "py.unknown".into(),
                quote(&format!("the filter '{name}' does not exist")),
            ))
        }
    }

    fn one_filter(&mut self, value: Code) -> Result<Code, CompileError> {
        let path = value.path.clone();
        let (name, args) = self.filter_call()?;
        Ok(Code::with_path(
            filter(value.text, &name, &args),
            join_path(&path, &format!("|{name}")),
        ))
    }

    fn test(&mut self, value: Code) -> Result<Code, CompileError> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let args = match self.peek() {
            Token::Op("(") => self.arguments("")?,
            Token::Name(word) if ends_test(word) => String::new(),
            Token::Name(_)
            | Token::Str(_)
            | Token::Int(_)
            | Token::Float(_)
            | Token::Op("[" | "{") => {
                let argument = self.primary()?;
                self.postfix(argument)?.text
            }
            _ => String::new(),
        };
        let code = if super::predicates::is_known(&name) {
            filter(value.text, &format!("is.{name}"), &args)
        } else {
            filter(
                value.text,
                "py.unknown",
                &quote(&format!("the test '{name}' does not exist")),
            )
        };
        Ok(Code::new(if negated {
            format!("(not {code})")
        } else {
            code
        }))
    }

    fn dotted_name(&mut self) -> Result<String, CompileError> {
        let Token::Name(first) = self.next() else {
            self.at -= 1;
            return Err(self.unexpected("a name"));
        };
        let mut name = first.clone();
        while let (Token::Op("."), Token::Name(part)) = (self.peek(), self.ahead(1)) {
            self.at += 2;
            name.push('.');
            name.push_str(part);
        }
        Ok(name)
    }
}

/// Words after a test that are not its argument.
fn ends_test(word: &str) -> bool {
    matches!(
        word,
        "and" | "or" | "not" | "in" | "is" | "if" | "else" | "recursive"
    )
}
