"""Writes python_cases.json: small templates and what Jinja2 makes of them in the environment of apply_chat_template.

Run with Jinja2 3.1 installed, in this folder: `python3 python_cases.py`. The result is checked in, so that the tests need no
Python. A case is [template, text], or [template, null] where Jinja2 raises an error.
"""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 5, 9, 7, 8, 42)

VARIABLES = {
    "text": "Hello, Wörld!\n  second line  ",
    "name": "Ada",
    "empty": "",
    "tags": "<think>\nplan\n</think>\n\nanswer",
    "n": 7,
    "zero": 0,
    "x": 2.5,
    "big": 1e16,
    "tiny": 0.00001,
    "whole": 3.0,
    "yes": True,
    "no": False,
    "nothing": None,
    "items": [3, 1, 2],
    "words": ["b", "A", "c", "B"],
    "mixed": [1, "two", None, True, 2.5, ["in"], {"k": "v"}],
    "quotes": ["it's", 'say "hi"', "both ' and \"", "back\\slash", "new\nline\ttab", "é ñ 日本 🎉", "\x00\x1f\x7f\x85\xa0\xad\u200b\u2028\ufeff"],
    "d": {"b": 1, "a": "two", "C": None, "nested": {"list": [1, 2], "flag": False}},
    "schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]}, "n": {"type": ["integer", "null"], "default": 1}}, "required": ["city"], "items": "an item", "keys": "a key"},
    "people": [
        {"name": "Bo", "age": 30, "city": "Oslo", "tags": []},
        {"name": "al", "age": 25, "city": "rome", "tags": ["x"]},
        {"name": "Cy", "age": 35, "city": "oslo"},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": "<&>", "c": [True, None]}}}]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Done."},
    ],
    "html": "<b>\"Tom\" & 'Jerry'</b>",
}

CASES = {}


def group(name, *templates):
    CASES[name] = list(templates)


group(
    "printing",
    "{{ nothing }}|{{ yes }}|{{ no }}|{{ n }}|{{ x }}|{{ big }}|{{ tiny }}|{{ whole }}|{{ missing }}|",
    "{{ items }} {{ mixed }} {{ d }}",
    "{{ quotes }}",
    "{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [] }} {{ {} }}",
    "{{ {'a': 1, 2: 'b', none: true} }}",
    "{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ range(3) }} {{ range(1, 10, 3) }}",
    "{{ 1e22 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 0.0001 }} {{ 0.00012345 }} {{ 1.5e-7 }} {{ -0.0 }} {{ 100.0 }}",
    "{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5 }} {{ 2e3 }}",
    "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}",
    "{{ 'a' 'b' \"c\" }}",
    r"{{ 'tab\tnl\nq\'dq\" back\\ hex\x41 uni\u00e9 oct\101 unknown\d \/' }}",
    "{{ d['nested'] }} {{ people[1] }}",
    "{{ 'ümlaut' }} {{ ['ü', '\u3042'] }}",
)
group(
    "concatenation",
    "{{ 'a' ~ nothing ~ yes ~ no ~ n ~ x ~ whole ~ missing }}",
    "{{ items ~ d.nested ~ (1, 'a') }}",
    "{{ 'a' + 'b' + name }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' + nothing }}",
    "{{ 'a' + items }}",
    "{{ 'a' + missing }}",
    "{{ missing + 'a' }}",
    "{{ 1 ~ 2 + 3 ~ 4 }}",
    "{{ 1 + 2 ~ 3 }}",
    "{{ items + [4] }} {{ (1,) + (2, 3) }}",
    "{{ items + (4,) }}",
    "{{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [0] * 3 }} {{ 'ab' * -1 }} {{ (1, 2) * 2 }}",
    "{{ 'a' * 'b' }}",
    "{{ yes + yes }} {{ yes + 1.5 }}",
    "{{ 'a' ~ 'b' if yes else 'c' }}",
    "{{ name|upper ~ '!' }}",
    "{{ ('a' ~ name)|lower ~ d.a|upper }}",
)
group(
    "arithmetic",
    "{{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ -7 // -2 }} {{ 7.5 // 2 }}",
    "{{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 % -3 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}",
    "{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 10 - 3 - 2 }} {{ 100 / 10 / 2 }} {{ -n }} {{ +n }} {{ - - n }}",
    "{{ 1 / 0 }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ -name }}",
    "{{ -missing }}",
    "{{ nothing + 1 }}",
    "{{ 9223372036854775807 + 1 }} {{ 99999999999 * 99999999999 }}",
    "{{ n|abs }} {{ (-7)|abs }} {{ -7|abs }} {{ (-2.5)|abs }}",
    "{{ 0.1 + 0.2 }} {{ 1.0 * 3 }} {{ 3 - 0.5 }}",
)
group(
    "formatting",
    "{{ '%s and %s' % ('a', 1) }} {{ '%s' % name }} {{ '%d%%' % n }} {{ '%05d|%-5s|%5s' % (n, 'ab', 'cd') }}",
    "{{ '%.2f %.0f %5.1f' % (x, x, x) }} {{ '%x %X %o' % (255, 255, 8) }}",
    "{{ '%(a)s %(b)d' % {'a': 'x', 'b': 3} }}",
    "{{ '%s %s' % (nothing, yes) }} {{ '%s' % ([1, 'a'],) }}",
    "{{ '%s' % (1, 2) }}",
    "{{ '%d' % 'a' }}",
    "{{ 'x' % 1 }}",
    "{{ 'x' % () }} {{ 'x%%' % () }}",
    "{{ 'x'|format(1) }}",
    "{{ '{} {}'.format('a', 1) }} {{ '{1} {0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ '{{}}'.format() }}",
    "{{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}'.format('a', 'b', 'c', 42, 1.5) }}",
    "{{ '{} {}'.format(nothing, yes) }}",
    "{{ '%s, %s!'|format('a', name) }} {{ '%(a)s'|format(a=1) }}",
)
group(
    "comparison",
    "{{ 1 == 1.0 }} {{ 1 == true }} {{ 0 == false }} {{ '1' == 1 }} {{ none == false }} {{ [1] == [1.0] }} {{ (1,) == [1] }} {{ {} == {} }}",
    "{{ missing == none }} {{ missing == missing2 }} {{ missing != 'a' }} {{ missing == '' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }} {{ 1 == 1 == 1 }}",
    "{{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ (1, 2) >= (1, 2) }} {{ true < 2 }}",
    "{{ 1 < 'a' }}",
    "{{ none < 1 }}",
    "{{ missing < 1 }}",
    "{{ 'b' in 'abc' }} {{ 'x' not in 'abc' }} {{ 1 in items }} {{ 'a' in d }} {{ 'two' in d.values() }} {{ '' in '' }} {{ 2 in (1, 2) }} {{ true in [1] }}",
    "{{ 1 in 'abc' }}",
    "{{ none in 'abc' }}",
    "{{ 'a' in none }}",
    "{{ 'a' in missing }}",
    "{{ 'a' in 5 }}",
    "{{ missing in items }} {{ none in mixed }}",
    "{{ [1] in d }}",
    "{{ not yes }} {{ not missing }} {{ not not 'a' }} {{ not [] }} {{ not 0.0 }}",
    "{{ yes and 'a' }} {{ no and 'a' }} {{ '' or 'b' }} {{ 0 or none or 'c' }} {{ 'x' and [] }} {{ yes or no and no }}",
    "{{ 'a' if yes }}|{{ 'a' if no }}|{{ 'a' if no else 'b' if no else 'c' }}",
    "{{ not 1 == 2 }} {{ not yes or yes }} {{ 1 if not no and yes else 2 }}",
)
group(
    "tests",
    "{{ missing is defined }} {{ nothing is defined }} {{ missing is undefined }} {{ d.q is defined }} {{ d.a is not defined }}",
    "{{ nothing is none }} {{ missing is none }} {{ none is not none }}",
    "{% for v in [nothing, missing, yes, n, x, name, items, (1, 2), d, range(2), d.items(), items|map('string')] %}{{ v is string }} {{ v is mapping }} {{ v is iterable }} {{ v is sequence }} {{ v is number }} {{ v is integer }} {{ v is float }} {{ v is boolean }} {{ v is none }} {{ v is callable }}\n{% endfor %}",
    "{{ none is iterable }} {{ 5 is iterable }} {{ '' is iterable }} {{ missing is iterable }} {{ missing is sequence }} {{ missing is mapping }}",
    "{{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }} {{ none is false }}",
    "{{ 3 is odd }} {{ 4 is even }} {{ -3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }}",
    "{{ 'a' is odd }}",
    "{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ '1' is lower }} {{ '' is upper }}",
    "{{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is gt(1) }} {{ 1 is in [1] }} {{ 'a' is in 'abc' }}",
    "{{ 1 is sameas 1 }} {{ none is sameas none }} {{ true is sameas true }} {{ items is sameas items }} {{ [1] is sameas [1] }} {{ 1 is sameas true }}",
    "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}",
    "{{ 5 is not string }} {{ not 5 is string }} {{ 5 is string or 5 is number }}",
    "{% if name is string and name|length > 2 %}yes{% endif %}",
    "{{ name is nosuchtest }}",
    "{{ range is callable }} {{ d.get is callable }} {{ name is callable }}",
    "{{ 1 is string }} {{ x is number and x > 2 }}",
)
group(
    "access",
    "{{ d.a }} {{ d['a'] }} {{ d.nested.list[1] }} {{ d['nested']['list'][-1] }} {{ items[0] }} {{ items[-1] }} {{ items.0 }} {{ items[true] }}",
    "{{ items[10] }}|{{ d.missing }}|{{ name.foo }}|{{ n.foo }}|{{ nothing.foo }}|{{ nothing['foo'] }}|{{ items.foo }}|{{ items['a'] }}|{{ items[1.0] }}|",
    "{{ d.missing.more }}",
    "{{ missing.foo }}",
    "{{ missing['foo'] }}",
    "{{ missing[0] }}",
    "{{ missing[1:] }}",
    "{{ nothing.foo.bar }}",
    "{{ name[0] }} {{ name[-1] }} {{ text[7] }} {{ name[5] }}|{{ ''[0] }}|",
    "{{ schema.type }} {{ schema['items'] }} {{ schema['keys'] }} {{ schema.properties.n.type }}",
    "{{ schema.items is defined }} {{ d.items is defined }} {{ d.nope is defined }} {{ name.strip is defined }} {{ 'yes' if schema.items else 'no' }}",
    "{% if d.items %}method{% endif %}{% for k, v in d.items() %}{{ k }}{% endfor %}",
    "{{ d['keys']()|list }}",
    "{{ d[items] }}|",
    "{{ d[missing] }}|",
    "{{ people[0].name }} {{ people[-1]['age'] }} {{ (people|first).city }}",
    "{{ messages[0].content }} {{ messages[2].tool_calls[0].function.arguments.b }}",
    "{{ messages[messages|length - 1].role }}",
    "{{ loop }}|",
    "{{ 'abc'.upper().lower() }} {{ ['a'][0] }} {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ (1, 2)[1] }}",
)
group(
    "slices",
    "{{ items[1:] }} {{ items[:1] }} {{ items[:-1] }} {{ items[-2:] }} {{ items[:] }} {{ items[5:] }} {{ items[2:1] }} {{ items[-10:10] }}",
    "{{ items[::-1] }} {{ items[::2] }} {{ items[1::-1] }} {{ items[:0:-1] }} {{ items[-1:0:-1] }} {{ items[5::-1] }} {{ items[::-2] }} {{ items[-9:-1:-1] }}",
    "{{ name[::-1] }} {{ name[1:] }} {{ text[7:12] }} {{ text[:-3] }} {{ text[-3:] }} {{ 'abcdef'[1:5:2] }} {{ 'äöü'[::-1] }} {{ 'äöü'[1:] }}",
    "{{ (1, 2, 3)[1:] }} {{ range(10)[2:8:3] }} {{ range(5)[::-1] }}",
    "{{ items[0:none] }} {{ items[none:2] }} {{ items[true:] }}",
    "{{ items[::0] }}",
    "{{ items['a':] }}",
    "{{ nothing[1:] }}|{{ n[1:] }}|{{ d[1:] }}|",
    "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[0] }}{% endfor %}",
    "{% for m in messages[1:] %}{{ m.role }} {% endfor %}",
    "{% set loop_messages = messages[1:] %}{{ loop_messages|length }}{{ loop_messages[0].role }}",
)
group(
    "string methods",
    "[{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] [{{ 'xxabxx'.strip('x') }}] [{{ 'abcba'.lstrip('ab') }}] [{{ 'a b'.rstrip('b ') }}] [{{ ' a '.strip(none) }}]",
    "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a b c'.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,c'.split(',')[-1] }} {{ 'a--b'.split('--', maxsplit=1) }} {{ ' a b '.split(' ') }}",
    "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c'.rsplit(none, 1) }} {{ ' a b  c '.rsplit() }} {{ 'a'.rsplit(',') }} {{ '  a b  '.split(none, 0) }} {{ '  a b  c  '.split(none, 1) }}",
    "{{ 'a'.split('') }}",
    "{{ tags.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|{{ tags.split('</think>')[-1].lstrip('\\n') }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'ab')) }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.endswith('b') }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('') }} {{ 'abc'.startswith(()) }} {{ 'abc'.endswith('b', 0, 2) }}",
    "{{ 'abc'.startswith(['a']) }}",
    "{{ 'abc'.startswith(1) }}",
    "{{ 'abc'.startswith(none) }}",
    "{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('b', '') }} {{ 'aaa'.replace('a', 'b', -1) }}",
    "{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('x') }} {{ 'äbc'.find('b') }} {{ 'abcabc'.index('b') }} {{ 'abcabc'.find('c', 3) }} {{ 'abcabc'.count('b') }} {{ 'abc'.count('') }} {{ 'äöü'.rindex('ü') }} {{ 'abcabc'.find('a', 1, 3) }} {{ 'abc'.find('', 5) }}",
    "{{ 'abc'.index('x') }}",
    "{{ 'hello world'.title() }} {{ \"it's ok\".title() }} {{ 'HELLO World'.capitalize() }} {{ 'aBc'.swapcase() }} {{ 'ABC'.lower() }} {{ 'straße'.upper() }} {{ 'a1b2'.title() }} {{ 'ÉCOLE'.capitalize() }}",
    "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ ','.join({'a': 1, 'b': 2}) }}",
    "{{ ','.join([1, 2]) }}",
    "{{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\\n\\nb'.splitlines() }} {{ 'a\\x0bb\\x1cc\\x85d\\u2028e'.splitlines() }}",
    "{{ 'abc'.isalpha() }} {{ '123'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isspace() }} {{ ''.isalpha() }} {{ 'Ab'.isupper() }} {{ 'ab1'.islower() }} {{ '1'.islower() }} {{ 'é'.isascii() }} {{ ''.isascii() }} {{ 'Ab Cd'.istitle() }} {{ '12'.isdecimal() }} {{ '½'.isnumeric() }}",
    "{{ 'key=value=x'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removeprefix('y') }}",
    "[{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '-') }}] [{{ 'a'.center(4) }}] [{{ 'ab'.center(5) }}] [{{ 'abc'.center(6, '*') }}] [{{ '7'.zfill(3) }}] [{{ '-7'.zfill(4) }}] [{{ 'abc'.center(2) }}]",
    "[{{ 'a\\tb'.expandtabs() }}] [{{ 'a\\tb'.expandtabs(4) }}]",
    "{{ nothing.strip() }}",
    "{{ n.strip() }}",
    "{{ missing.strip() }}",
    "{{ name.nope() }}",
    "{{ items.strip() }}",
    "{{ (text.split(',')|first).rstrip('o') }} {{ (name ~ '  ').rstrip() }} {{ ('a' + 'b').upper() }} {{ 'abc'[1:].upper() }}",
    "{{ name.upper()|lower }} {{ name|lower.upper() if no else 'x' }}",
    "{{ '\\u00a0\\x1c a \\u3000'.strip() }}|",
    "{{ text.split('\\n')|map('trim')|join('/') }}",
    "{{ 'İ'.lower()|length }} {{ 'ΑΣ'.lower() }}",
)
group(
    "dict and list methods",
    "{{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 'dflt') }} {{ d.get('zz', default='x') if no else '' }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{{ missing|items|list }}",
    "{{ name|items|list }}",
    "{{ nothing|items|list }}",
    "{{ items|items|list }}",
    "{% for k in d %}{{ k }} {% endfor %}{{ d|length }} {{ d|list }} {{ d|first }} {{ d|last }}",
    "{{ items.index(1) }} {{ items.count(3) }} {{ (1, 1).count(1) }} {{ items.copy() }} {{ d.copy() == d }}",
    "{{ items.index(9) }}",
    "{{ items.append(4) }}",
    "{{ d.update({'x': 1}) }}",
    "{{ d.pop('a') }}",
    "{% set _ = items.append(1) %}",
    "{{ d.keys()|reject('in', ['a', 'b'])|list }} {{ d.keys()|select('in', ('a', 'C'))|join(',') }}",
    "{{ d.keys()|length }} {{ d.items()|length }} {{ d.values()|first }}",
    "{{ d.items()[0] }}|",
    "{{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }} {{ dict([('a', 1)]) }}",
    "{{ {'a': 1, 'a': 2} }} {{ {1: 'a', 1.0: 'b'} }}",
    "{{ {[1]: 2} }}",
)
group(
    "json",
    "{{ d|tojson }} {{ mixed|tojson }} {{ name|tojson }} {{ n|tojson }} {{ nothing|tojson }} {{ yes|tojson }} {{ x|tojson }} {{ big|tojson }} {{ whole|tojson }}",
    "{{ quotes|tojson }}",
    "{{ quotes|tojson(ensure_ascii=true) }}",
    "{{ quotes|tojson(ensure_ascii=False) }}",
    "{{ d|tojson(indent=2) }}",
    "{{ d|tojson(indent=4)|indent(2) }}",
    "{{ d|tojson(separators=(',', ':')) }} {{ d|tojson(separators=[',', ':']) }} {{ d|tojson(ensure_ascii=False, separators=(', ', ' = ')) }}",
    "{{ d|tojson(sort_keys=true) }} {{ {'b': 1, 'a': {'z': 1, 'y': 2}}|tojson(sort_keys=True, indent=1) }}",
    "{{ {}|tojson }} {{ []|tojson }} {{ {}|tojson(indent=2) }} {{ [[], {}]|tojson(indent=2) }} {{ (1, 2)|tojson }}",
    "{{ {1: 'a', 2.5: 'b', none: 'c', true: 'd'}|tojson }}",
    "{{ html|tojson }}",
    "{{ d|tojson(indent='\\t') }} {{ [1]|tojson(indent=0) }}",
    "{{ missing|tojson }}",
    "{{ range(3)|tojson }}",
    "{{ d.keys()|tojson }}",
    "{{ items|map('string')|tojson }}",
    "{{ items|map('string')|list|tojson }}",
    "{{ messages[2].tool_calls[0].function.arguments|tojson }}",
    "{{ {(1, 2): 3}|tojson }}",
    "{{ d|tojson(2) }}",
    "{{ d|tojson(false, 2) }}",
    "{{ d|tojson(nope=1) }}",
    "{{ '\\u2028 \\x7f'|tojson }} {{ '\\x7f'|tojson(ensure_ascii=true) }}",
)
group(
    "filters",
    "{{ name|upper }} {{ name|lower }} {{ 'hello world-foo (bar'|title }} {{ \"it's\"|title }} {{ 'aBC'|capitalize }} {{ n|upper }} {{ nothing|upper }}",
    "[{{ text|trim }}] [{{ 'xax'|trim('x') }}] [{{ n|trim }}] [{{ missing|trim }}] [{{ nothing|trim }}]",
    "{{ missing|default('x') }} {{ nothing|default('x') }} {{ ''|default('x') }} {{ ''|default('x', true) }} {{ nothing|d('y', boolean=true) }} [{{ missing|default }}] {{ d.zz|default('z') }}",
    "{{ missing.foo|default('x') }}",
    "{{ items|length }} {{ text|length }} {{ d|count }} {{ missing|length }} {{ ''|length }} {{ 'äö'|length }}",
    "{{ nothing|length }}",
    "{{ n|length }}",
    "{{ items|map('string')|length }}",
    "{{ items|first }} {{ items|last }} {{ name|first }} {{ name|last }} [{{ []|first }}] [{{ ''|last }}]",
    "{{ n|first }}",
    "{{ items|join }} {{ items|join(', ') }} {{ mixed|join('|') }} {{ people|join(',', attribute='name') }} {{ name|join('-') }} {{ []|join(',') }} {{ missing|join(',') }} {{ people|map(attribute='age')|join(' ') }}",
    "{{ nothing|join(',') }}",
    "{{ items|list }} {{ name|list }} {{ d|list }} {{ (1, 2)|list }} {{ range(3)|list }} {{ missing|list }}",
    "{{ nothing|list }}",
    "{{ items|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ items|sort(reverse=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='city,age')|map(attribute='name')|list }} {{ words|sort(true) }}",
    "{{ mixed|sort }}",
    "{{ d|dictsort }} {{ {'b': 2, 'A': 1}|dictsort(true) }} {{ {'b': 1, 'A': 2}|dictsort(by='value') }} {{ {'b': 2, 'A': 1}|dictsort(reverse=true) }}",
    "{{ d|dictsort(by='value') }}",
    "{{ items|reverse|list }} {{ name|reverse }} {{ (1, 2)|reverse|list }} {{ {'a': 1, 'b': 2}|reverse|list }}",
    "{{ items|min }} {{ items|max }} {{ words|min }} {{ words|max }} {{ people|max(attribute='age') }} [{{ []|min }}] {{ ['b', 'a']|min }}",
    "{{ items|sum }} {{ people|sum(attribute='age') }} {{ items|sum(start=10) }} {{ []|sum }} {{ [1.5, 2]|sum }}",
    "{{ words|sum }}",
    "{{ words|unique|list }} {{ [1, 1, 2]|unique|list }} {{ words|unique(true)|list }} {{ people|unique(attribute='city')|map(attribute='name')|list }}",
    "{{ items|map('string')|list }} {{ words|map('upper')|join }} {{ people|map(attribute='name')|list }} {{ people|map(attribute='tags.0', default='-')|list }} {{ ['a b']|map('replace', ' ', '_')|list }} {{ [[1, 2]]|map('join', '+')|list }} {{ [' a ']|map('trim')|list }}",
    "{{ nothing|map('upper')|list }} {{ no|select('odd')|list }} {{ missing|selectattr('a')|list }} {{ nothing|rejectattr('a')|list }} {{ 0|map(attribute='x')|list }}",
    "{{ n|map('upper')|list }}",
    "{{ items|map('nope')|list }}",
    "{{ items|map|list }}",
    "{{ items|select('odd')|list }} {{ items|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} {{ [0, 1, none]|reject|list }} {{ items|select('gt', 1)|list }} {{ items|select('>', 1)|list }} {{ [none, 1]|reject('none')|list }} {{ items|select('in', [1])|list }} {{ ['a', 1]|select('string')|list }}",
    "{{ people|selectattr('age', 'gt', 26)|map(attribute='name')|list }} {{ people|rejectattr('tags')|map(attribute='name')|list }} {{ people|selectattr('tags', 'defined')|list|length }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|selectattr('role', '==', 'tool')|first }} {{ messages|rejectattr('role', 'in', ['system', 'tool'])|map(attribute='role')|list }}",
    "{{ items|select('nope')|list }}",
    "{% if messages|selectattr('role', 'eq', 'nobody') %}always{% endif %}{% if messages|selectattr('role', 'eq', 'nobody')|list %}never{% endif %}",
    "{% set g = items|map('string') %}{{ g|join }}|{{ g|join }}",
    "{{ (items|map('string'))[0] }}|",
    "{{ items|batch(2)|list }} {{ items|batch(2, 'x')|list }} {{ items|slice(2)|list }} {{ items|slice(2, 'x')|list }}",
    "{% for g in people|groupby('city') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}{% for city, ps in people|groupby('city', case_sensitive=true) %}{{ city }}{{ ps|length }}{% endfor %}{{ people|groupby('tags', default='q')|length if no else '' }}",
    "{{ 'a b c'|replace(' ', '-') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 5|replace('5', 'x') }} {{ 'x'|replace('x', 1) }}",
    "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(2, blank=true) }}|{{ 'a\\nb\\n'|indent('> ') }}|{{ ''|indent }}|{{ 'a\\nb'|indent(width=1, first=True) }}",
    "{{ n|indent }}",
    "{{ '42'|int }} {{ '42.7'|int }} {{ 'abc'|int }} {{ 'abc'|int(-1) }} {{ 3.9|int }} {{ -3.9|int }} {{ ' 12 '|int }} {{ '0x1f'|int(base=16) }} {{ '1f'|int(0, 16) }} {{ true|int }} {{ none|int }} {{ ''|int }} {{ '1_000'|int }}",
    "{{ missing|int }}",
    "{{ missing|float }}",
    "{{ '3.5'|float }} {{ 'abc'|float }} {{ 3|float }} {{ 'x'|float(1.5) }} {{ '1e3'|float }} {{ none|float }}",
    "{{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.567|round(1, 'floor') }} {{ 2.1|round(method='ceil') }} {{ 5|round }} {{ 1234.5|round(-2) }} {{ 2.675|round(2) }}",
    "{{ html|e }} {{ html|escape }} {{ html|safe }} {{ html|forceescape }}",
    "{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}",
    "{{ 'one two, three'|wordcount }} {{ 'a/b c&d'|urlencode }} {{ {'a': 'b c', 'd': '/'}|urlencode }} [{{ 'ab'|center(6) }}]",
    "{{ n|string }} {{ items|string }} {{ nothing|string }} {{ yes|string|length }}",
    "{{ d|attr('a') }}|{{ name|attr('nope') }}|",
    "{{ name|nosuchfilter }}",
    "{{ 'x' if yes else name|nosuchfilter }}",
    "{{ name | upper | lower | length + 1 }}",
    "{{ -1|abs }} {{ 2 + 3|string|length }} {{ 'a' ~ 'b'|upper }}",
    "{{ name|upper|replace('A', '4')|lower }}",
    "{{ items|map('float')|map('round', 1)|list }}",
    "{{ 'abc'|upper() }} {{ 'abc'|replace(old='b', new='x') }}",
    "{{ 'abc'|upper(1) }}",
    "{{ 'abc'|replace('b') }}",
    "{{ [{'a': {'b': 1}}]|map(attribute='a.b')|list }}",
)
group(
    "loops",
    "{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in items %}{{ loop.previtem is defined }}{{ (loop.nextitem.foo is defined) if not loop.last }} {% endfor %}",
    "{% for i in items %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for i in items if i > 5 %}x{% else %}none{% endfor %}",
    "{% for i in items if i > 1 %}{{ loop.index }}{{ i }}{{ loop.last }} {% endfor %}",
    "{% for i in nothing %}x{% endfor %}",
    "{% for i in 5 %}x{% endfor %}",
    "{% for i in missing %}x{% else %}none{% endfor %}",
    "{% for c in name %}{{ c }}.{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}x{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in items %}{% for j in items %}{% if j == i %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in items %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% set t = [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3, 'c': [{'v': 4, 'c': []}]}]}] %}{% for i in t recursive %}{{ i.v }}{{ loop.depth }}[{{ loop(i.c) }}]{% endfor %}",
    "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}",
    "{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}",
    "{% for i in items|sort %}{{ i }}{% endfor %}{% for i in items|map('string') %}{{ i ~ ',' }}{{ loop.last }}{% endfor %}",
    "{% for _ in range(2) %}{{ loop.index }}{% endfor %}{{ _ }}",
    "{% for i in range(100001) %}{% endfor %}",
    "{% for i in items %}{% continue %}{% else %}none finished{% endfor %}{% for i in items %}{% break %}{% else %}x{% endfor %}",
    "{% for i in items %}{% if i == 1 %}{% break %}{% endif %}{% else %}x{% endfor %}",
    "{% for i in [] %}{% else %}{% set q = 1 %}{% endfor %}{{ q }}|",
    "{% for i in items %}{% for j in [] %}{% else %}{{ i }}{% break %}{% endfor %}{% endfor %}",
)
group(
    "scopes",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}|",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.c = [1, {'k': none}] %}{{ ns.c }}",
    "{% set ns.x = 1 %}",
    "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% for i in items %}{% if loop.first %}{% set f = i %}{% endif %}{{ f }}{% endfor %}{{ f }}|",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = (3, 4) %}{{ c }}{{ d }}{% set t = 1, 2 %}{{ t }}",
    "{% set a, b = [1, 2, 3] %}",
    "{% set a %}x{{ n }}{% set inner = 5 %}y{% endset %}[{{ a }}]{{ inner }}{{ a is string }}{% set b | upper | trim %} abc {% endset %}{{ b }}|",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}|",
    "{% filter upper %}a{{ name }}{% set q = 1 %}{% endfilter %}{{ q }}|",
    "{% set x %}{% for i in items %}{{ i }}{% endfor %}{% endset %}{{ x }}",
    "{% set messages = messages[1:] %}{{ messages[0].role }}",
    "{% generation %}a{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}b",
    "x\n{% generation %}\nbody\n{% endgeneration %}\ny",
    "x  {%- generation -%}  body  {%- endgeneration -%}  y",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "{% set n = n + 1 %}{{ n }}{% if true %}{% set n = n + 1 %}{% endif %}{{ n }}",
    "{% print n %}{% print n, name %}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' and not ns.found %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}",
)
group(
    "macros",
    "{% macro m(a, b='x', c=n) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m() }}{{ m(b=2, a=1) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m() %}{{ name }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}",
    "{% macro m() %}{% set name = 'inner' %}{{ name }}{% endmacro %}{{ m() }}{{ name }}",
    "{% macro m() %}  a  {% endmacro %}[{{ m()|trim }}][{{ m() ~ 'x' }}]{{ m() is string }}",
    "{% macro m(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}",
    "{% macro m() %}{% for i in items %}{{ i }}{% endfor %}{% endmacro %}{{ m() }}{% for i in [1] %}{{ m() }}{% endfor %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
    "{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(missing, missing) }}{{ m(1, b=missing) }}{{ m(1, none) }}",
    "{% macro m(f) %}{{ f(1) }}{% endmacro %}{% macro g(x) %}<{{ x }}>{% endmacro %}{{ m(g) }}{{ {'k': g}['k'](2) }}{{ {'k': g}.k(3) }}",
    "{{ nosuch() }}",
    "{{ name() }}",
    "{{ d.a() }}",
    "{% macro render(d, level=0) %}{% for k, v in d.items() %}{{ '  ' * level }}{{ k }}:{% if v is mapping %}\n{{ render(v, level + 1) }}{% else %}{{ v }}\n{% endif %}{% endfor %}{% endmacro %}{{ render(d) }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}",
    "{{ raise_exception('no: ' ~ n) }}",
    "{% if no %}{{ raise_exception('x') }}{% endif %}fine",
)
group(
    "white space",
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}\n  b\n  {% endif %}\n  c",
    "a\n  {%+ if yes %}\n  b\n  {%+ endif %}\n  c",
    "a\n  {% if yes +%}\n  b\n  {% endif +%}\n  c",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c",
    "a \n {{ n }} \n b\n {{- n -}} \n c {{- n }} {{ n -}} d",
    "a\n  {# comment #}\n  b {# c #} d\n{#- x -#}\n e\n{#+ y +#}\nf",
    "  {% if yes %}  x  {% endif %}  ",
    "{% if yes %}\n\n\nx{% endif %}\n\n\ny",
    "{% for i in items %}\n    {{ i }}\n{% endfor %}\n",
    "{% for i in items -%}\n    {{ i }}\n{%- endfor %}\n\n",
    "a\r\n{% if yes %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "{% raw %}{{ not }} {% a %}{% endraw %}\nx",
    "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\n  b",
    "a {%- raw -%}  {{ x }}  {%- endraw -%} b",
    "{{ '{{' }} {{ '}}' }} {{ '{%' }} {{ {'a': {'b': 1}} }}",
    "{ {{ n }} } {{ '{' }}{{ n }}}",
    "{ {%- if yes %}{ x }{% endif -%} }",
    "\n\n{% if yes %}a{% endif %}\n\n\n",
    "{%if yes%}a{%else%}b{%endif%}{{n}}",
    "{% set a = 1 %}\n{% set b = 2 %}\n  {% set c = 3 %}\n{{ a }}{{ b }}{{ c }}\n",
    "{% if yes %}\t\n \tx\n{% endif %}\n",
    "x{% if yes %}\n  {% if yes %}\n    y\n  {% endif %}\n{% endif %}z",
    "{{ n }}\n{{ n }}\n\n",
    "{{ 'a\nb' }}",
    "{#{{ n }}#}{# a {# b #}c",
    "   {#- a -#}   b   {{- ' c ' -}}   d",
    "{% if yes -%}   \n\n a{% endif %}",
    "a\u00a0{%- if yes %} b{% endif %}",
    "{{n}}{% if yes %}{% endif %}\n{% if yes %}\n{% endif %}\n\nend",
)
group(
    "syntax errors",
    "{% if %}",
    "{% if yes %}",
    "{{ a b }}",
    "{{ 'abc }}",
    "{% endfor %}",
    "{% for x %}{% endfor %}",
    "{{ (1 }}",
    "{{ [1} }}",
    "{% nosuch %}",
    "{{ }}",
    "{# open",
    "{{ 1 + }}",
    "{% set = 1 %}",
    "{% break %}",
    "{{ a. }}",
    "{{ a | }}",
    "{% macro %}{% endmacro %}",
    "{% for i in items %}{% endif %}",
    "{{ a is }}",
    "{{ $ }}",
    "{{ a ? b }}",
)
group(
    "time",
    "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%B %d, %Y') }} {{ strftime_now('%A, %d %B %Y') }}",
    "{{ strftime_now('%H:%M:%S') }} {{ strftime_now('%I:%M %p') }} {{ strftime_now('%a %b %y %j') }} {{ strftime_now('%-d %-m %-H %e') }}",
    "{{ strftime_now('%c | %x | %X | %D | %F | %T | %R | %r') }}",
    "{{ strftime_now('%U %W %V %G %g %u %w %C %h %k %l %P') }} {{ strftime_now('%f %% %z%Z|') }}",
    "{{ strftime_now('%^a %^B %_d %05d') if no else strftime_now('%^a %^B %_d') }} {{ strftime_now('') }} {{ strftime_now('plain') }}",
    "{{ strftime_now() }}",
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
    "{{ strftime_now(format='%Y') }}",
)
group(
    "templates in the wild",
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}",
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}{{ ns.last_query_index }}",
    "{%- for tool_call in messages[2].tool_calls %}{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}{{- '<tool_call>\\n{\"name\": \"' }}{{- tool_call.name }}{{- '\", \"arguments\": ' }}{%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}{%- endfor %}",
    "{%- for name, value in messages[2].tool_calls[0].function.arguments|items %}{{- '<parameter=' + name + '>\\n' }}{%- set value = value if value is string else value | tojson | safe %}{{- value }}{{- '\\n</parameter>\\n' }}{%- endfor %}",
    "{%- for json_key in schema.keys() | reject('in', ['type', 'required']) %}{{ json_key }}={% if schema[json_key] is mapping %}{{ schema[json_key]|tojson|safe }}{% else %}{{ schema[json_key]|string }}{% endif %};{%- endfor %}",
    "{{- 'Today: ' + strftime_now('%d %b %Y') if strftime_now is defined else 'Today: 26 Jul 2024' }}",
    "{% set content = tags %}{% if '</think>' in content %}{% set reasoning = ((content.split('</think>')|first).rstrip('\\n').split('<think>')|last).lstrip('\\n') %}{% set content = (content.split('</think>')|last).lstrip('\\n') %}{% endif %}[{{ reasoning }}][{{ content }}]",
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{ system_message }}{% for m in loop_messages %}{% if loop.first %}F{% endif %}{{ m.role }}{{ ',' if not loop.last }}{% endfor %}",
    "{%- macro strip_thinking(text) -%}{%- set ns = namespace(result='') -%}{%- for part in text.split('</think>') -%}{%- if '<think>' in part -%}{%- set ns.result = ns.result + part.split('<think>')[0] -%}{%- else -%}{%- set ns.result = ns.result + part -%}{%- endif -%}{%- endfor -%}{{- ns.result | trim -}}{%- endmacro -%}[{{ strip_thinking(tags) }}]",
    "{{ bos_token }}{% for m in messages %}{{ m['content'] | trim if m['content'] }}{{ eos_token if m.role == 'assistant' }}{% endfor %}",
    "{% set enable_thinking = enable_thinking if enable_thinking is defined else true %}{{ enable_thinking }}{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}",
)


class Generation(jinja2.ext.Extension):
    """The `generation` block: its body, in a call block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(template, variables):
    try:
        return environment().from_string(template).render(**variables)
    except Exception:
        return None


if __name__ == "__main__":
    cases = {name: [[t, render(t, VARIABLES)] for t in templates] for name, templates in CASES.items()}
    with open("python_cases.json", "w", encoding="utf-8") as file:
        json.dump({"now": NOW.isoformat(), "variables": VARIABLES, "cases": cases}, file, ensure_ascii=True, indent=1)
        file.write("\n")
    total = sum(len(group) for group in cases.values())
    errors = sum(text is None for group in cases.values() for _, text in group)
    print(f"{total} cases, {errors} of them errors")
